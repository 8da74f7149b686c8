//! Reads a script of faults.

use std::net::IpAddr;
use std::time::Duration;

use thiserror::Error;
use verbs_api::WcStatus;
use verbs_api::event::EventType;

use super::names::{
    CM_EVENTS, EVENTS, LIBRARY_CALLS, Named, OPERATIONS, STATES, STATUSES, TYPES, errno, find,
    names, nearest, nearest_errno,
};
use super::notation::{Act, Chance, Filter, Rule, What, When};
use crate::verb::Verb;

/// Why a text is no script of faults, with the place of the mistake.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("line {line}, column {column}: {message}")]
pub struct ScriptError {
    /// The line, counted from 1.
    pub line: usize,
    /// The column of that line in characters, counted from 1.
    pub column: usize,
    /// The mistake, and what would be right.
    pub message: String,
}

/// A part of a script: a rule, or the seed of the chances.
pub(super) enum Part {
    Rule(Rule),
    Seed(u64),
}

type Read<T> = Result<T, ScriptError>;

/// Reads the parts of a script, which semicolons or ends of lines separate. A `#` begins a comment.
pub(super) fn script(text: &str) -> Read<Vec<Part>> {
    let mut parts = Vec::new();
    for (line, text) in text.lines().enumerate() {
        let letters: Vec<char> = text.chars().collect();
        let mut reader = Reader {
            line: line + 1,
            letters: &letters,
            at: 0,
        };
        loop {
            match reader.peek() {
                None | Some('#') => break,
                Some(';') => reader.at += 1,
                Some(_) => {
                    parts.push(reader.part()?);
                    reader.end_of_part()?;
                }
            }
        }
    }
    Ok(parts)
}

struct Reader<'t> {
    line: usize,
    letters: &'t [char],
    at: usize,
}

/// A word of the script, with the place where it begins.
struct Word {
    text: String,
    at: usize,
}

fn is_of_word(letter: char) -> bool {
    letter.is_alphanumeric() || letter == '_'
}

fn list(all: impl Iterator<Item = &'static str>) -> String {
    all.collect::<Vec<_>>().join(", ")
}

fn owned(all: impl Iterator<Item = &'static str>) -> impl Iterator<Item = String> {
    all.map(str::to_owned)
}

/// Adds the name that was probably meant.
fn meant(near: Option<String>) -> String {
    near.map_or_else(String::new, |near| format!("; did you mean {near}?"))
}

impl Reader<'_> {
    fn error(&self, at: usize, message: impl Into<String>) -> ScriptError {
        ScriptError {
            line: self.line,
            column: at + 1,
            message: message.into(),
        }
    }

    fn wrong<T>(&self, at: usize, message: impl Into<String>) -> Read<T> {
        Err(self.error(at, message))
    }

    /// The next letter that is no blank.
    fn peek(&mut self) -> Option<char> {
        while self
            .letters
            .get(self.at)
            .is_some_and(|it| it.is_whitespace())
        {
            self.at += 1;
        }
        self.letters.get(self.at).copied()
    }

    fn takes(&mut self, text: &str) -> bool {
        self.peek();
        let wanted: Vec<char> = text.chars().collect();
        let is_there = self.letters[self.at..].starts_with(&wanted);
        if is_there {
            self.at += wanted.len();
        }
        is_there
    }

    /// The letter at this place, for the text of an error.
    fn there(&self) -> String {
        match self.letters.get(self.at) {
            Some(letter) => format!("{letter:?} is there"),
            None => "the line ends".to_owned(),
        }
    }

    fn expect(&mut self, text: &str, why: &str) -> Read<()> {
        if self.takes(text) {
            return Ok(());
        }
        let there = self.there();
        self.wrong(self.at, format!("{why}, and {there}"))
    }

    fn word(&mut self, wanted: &str) -> Read<Word> {
        self.peek();
        let at = self.at;
        while self.letters.get(self.at).is_some_and(|it| is_of_word(*it)) {
            self.at += 1;
        }
        if self.at == at {
            let there = self.there();
            return self.wrong(at, format!("{wanted} belongs here, and {there}"));
        }
        Ok(Word {
            text: self.letters[at..self.at].iter().collect(),
            at,
        })
    }

    /// The text up to one of these letters, without blanks at its ends.
    fn until(&mut self, ends: &[char]) -> Word {
        self.peek();
        let at = self.at;
        while self
            .letters
            .get(self.at)
            .is_some_and(|it| !ends.contains(it))
        {
            self.at += 1;
        }
        let text: String = self.letters[at..self.at].iter().collect();
        Word {
            text: text.trim_end().to_owned(),
            at,
        }
    }

    fn end_of_part(&mut self) -> Read<()> {
        match self.peek() {
            None | Some(';' | '#') => Ok(()),
            Some(_) => {
                let there = self.there();
                let wanted =
                    "a rule ends here: `;` or a new line begins the next one, `->` the next act";
                self.wrong(self.at, format!("{wanted}, and {there}"))
            }
        }
    }

    fn part(&mut self) -> Read<Part> {
        let word = self.word("a verb, wc, event, cm.EVENT or seed=N")?;
        if word.text == "seed" && self.takes("=") {
            return Ok(Part::Seed(self.number("the seed")?));
        }
        let what = self.what(&word)?;
        let filter = match self.takes("[") {
            true => self.filter(what)?,
            false => Filter::default(),
        };
        let when = match self.takes("@") {
            true => self.when(what)?,
            false => When::ALWAYS,
        };
        let chance = match self.takes("~") {
            true => Some(self.chance(when)?),
            false => None,
        };
        self.expect(":", "`:` and what shall happen belong here")?;
        let acts = self.acts(what)?;
        let rule = Rule {
            what,
            filter,
            when,
            chance,
            acts,
        };
        self.check(&word, &rule)?;
        Ok(Part::Rule(rule))
    }

    fn what(&mut self, word: &Word) -> Read<What> {
        let name = &*word.text;
        match name {
            "wc" if self.takes(".") => {
                let op = self.word("an operation")?;
                let found = find(OPERATIONS, &op.text).ok_or_else(|| {
                    let all = list(names(OPERATIONS));
                    let message = format!("completions are of {all}, not of {}", op.text);
                    self.error(op.at, message)
                });
                return Ok(What::Completion(Some(found?)));
            }
            "wc" => return Ok(What::Completion(None)),
            "event" => return Ok(What::Event),
            "cm" => {
                self.expect(
                    ".",
                    "an event of the connection manager follows, as in cm.ESTABLISHED",
                )?;
                let event = self.word("an event of the connection manager")?;
                return Ok(What::Cm(self.cm_event(&event)?));
            }
            _ => {}
        }
        if let Some(verb) = Verb::from_name(name) {
            return Ok(What::Verb(verb));
        }
        if let Some(call) = LIBRARY_CALLS.iter().find(|call| **call == name) {
            return Ok(What::Library(call));
        }
        if let Some(rest) = name.strip_prefix("ibv_") {
            return self.wrong(word.at, format!("verbs are written without ibv_: {rest}"));
        }
        let verbs = Verb::ALL.iter().map(|verb| verb.name());
        let others = ["wc", "event"].into_iter();
        let all = verbs.chain(LIBRARY_CALLS.iter().copied()).chain(others);
        let near = meant(nearest(name, owned(all)));
        self.wrong(
            word.at,
            format!("{name} is no verb, and not wc, event or cm.EVENT{near}"),
        )
    }

    fn cm_event(&self, word: &Word) -> Read<u8> {
        let name = word.text.trim_start_matches("RDMA_CM_EVENT_");
        let found = CM_EVENTS.iter().position(|known| *known == name);
        found.map(|code| code as u8).ok_or_else(|| {
            let near = nearest(name, owned(CM_EVENTS.into_iter()));
            let or_all = match near {
                Some(near) => meant(Some(near)),
                None => format!(": it has {}", list(CM_EVENTS.into_iter())),
            };
            self.error(
                word.at,
                format!("the connection manager has no event {name}{or_all}"),
            )
        })
    }

    fn number(&mut self, what: &str) -> Read<u64> {
        let word = self.word(what)?;
        let hexadecimal = word.text.strip_prefix("0x");
        let number = match hexadecimal {
            Some(digits) => u64::from_str_radix(digits, 16),
            None => word.text.parse(),
        };
        number.map_err(|_| {
            let message = format!("{what} is a number from 0 to 2^64 - 1, not {}", word.text);
            self.error(word.at, message)
        })
    }

    /// A count of occurrences, or an ordinal of an object: at least 1.
    fn ordinal(&mut self, what: &str) -> Read<u64> {
        self.peek();
        let at = self.at;
        match self.number(what)? {
            0 => self.wrong(at, format!("{what} is counted from 1")),
            number => Ok(number),
        }
    }

    fn filter(&mut self, what: What) -> Read<Filter> {
        let mut filter = Filter::default();
        loop {
            let key = self.word("a filter such as qp=2")?;
            self.check_key(&key, what)?;
            self.expect("=", "`=` and a value belong here")?;
            self.value(&key, what, &mut filter)?;
            if self.takes("]") {
                return Ok(filter);
            }
            self.expect(",", "`]` ends the filters, `,` separates them")?;
        }
    }

    fn check_key(&self, key: &Word, what: What) -> Read<()> {
        let known = keys(what);
        if known.contains(&&*key.text) {
            return Ok(());
        }
        let all = ["dev", "qp", "cq", "srq", "type", "op", "to", "peer"];
        let known = known.join(", ");
        let message = match all.contains(&&*key.text) {
            true => format!("{what} cannot be chosen by {}, but by {known}", key.text),
            false => format!("{} is no filter; {what} has {known}", key.text),
        };
        self.wrong(key.at, message)
    }

    fn value(&mut self, key: &Word, what: What, filter: &mut Filter) -> Read<()> {
        let mut ordinal = || -> Read<Option<u32>> {
            self.peek();
            let at = self.at;
            let number = self.ordinal("the number of an object, in the order of creation,")?;
            let number = u32::try_from(number);
            number
                .map(Some)
                .map_err(|_| self.error(at, "no device makes as many objects"))
        };
        match &*key.text {
            "qp" => filter.qp = ordinal()?,
            "cq" => filter.cq = ordinal()?,
            "srq" => filter.srq = ordinal()?,
            "dev" => {
                let name = self.until(&[',', ']']);
                if name.text.is_empty() {
                    return self.wrong(name.at, "the name of a device belongs here, such as ib0");
                }
                filter.dev = Some(name.text);
            }
            "peer" => {
                let address = self.until(&[',', ']']);
                let found = address.text.parse::<IpAddr>().map_err(|_| {
                    let message = format!("{:?} is no IP address of a peer", address.text);
                    self.error(address.at, message)
                });
                filter.peer = Some(found?);
            }
            "type" if what == What::Event => {
                let word = self.word("an event")?;
                filter.event = Some(self.event(&word)?);
            }
            "type" => filter.qp_type = Some(self.one_of("a type of queue pair", TYPES)?),
            "op" => filter.op = Some(self.one_of("an operation", OPERATIONS)?),
            _ => filter.to = Some(self.one_of("a state of queue pairs", STATES)?),
        }
        Ok(())
    }

    fn one_of<T: Copy>(&mut self, what: &str, all: &'static [Named<T>]) -> Read<T> {
        let word = self.word(what)?;
        find(all, &word.text).ok_or_else(|| {
            let known = list(names(all));
            self.error(word.at, format!("{} is not {what}: {known}", word.text))
        })
    }

    fn event(&self, word: &Word) -> Read<EventType> {
        let name = word.text.trim_start_matches("IBV_EVENT_");
        find(EVENTS, name).ok_or_else(|| {
            let near = meant(nearest(name, owned(names(EVENTS))));
            self.error(word.at, format!("there is no event {name}{near}"))
        })
    }

    fn when(&mut self, what: What) -> Read<When> {
        self.peek();
        let at = self.at;
        let digits = self.letters[at..]
            .iter()
            .take_while(|it| it.is_ascii_digit());
        let end = at + digits.count();
        let is_time = self.letters.get(end).is_some_and(|it| {
            it.is_alphabetic() || (*it == '.' && self.letters.get(end + 1) != Some(&'.'))
        });
        if is_time {
            let time = self.time()?;
            return match what {
                What::Event => Ok(When::Time(time)),
                _ => self.wrong(
                    at,
                    format!(
                        "a time is for `event`; {what} fires at a count, such as @3 or @10..20"
                    ),
                ),
            };
        }
        let first = self.ordinal("an occurrence")?;
        let (mut last, mut step) = (Some(first), 1);
        let is_range = self.takes("..");
        if is_range {
            self.peek();
            let at = self.at;
            let end = self.ordinal("the last occurrence")?;
            if end < first {
                return self.wrong(
                    at,
                    format!("the last occurrence {end} is before the first, {first}"),
                );
            }
            last = Some(end);
        }
        if self.takes("+") {
            if !is_range {
                last = None;
            }
            if self.peek().is_some_and(|it| it.is_ascii_digit()) {
                step = self.ordinal("the step")?;
            }
        }
        // A step within one occurrence means nothing, and is written again as none.
        if last == Some(first) {
            step = 1;
        }
        Ok(When::Counts { first, last, step })
    }

    fn time(&mut self) -> Read<Duration> {
        const UNITS: [(&str, f64); 5] = [
            ("ns", 1e-9),
            ("us", 1e-6),
            ("ms", 1e-3),
            ("s", 1.0),
            ("m", 60.0),
        ];
        self.peek();
        let at = self.at;
        while self
            .letters
            .get(self.at)
            .is_some_and(|it| it.is_ascii_alphanumeric() || *it == '.')
        {
            self.at += 1;
        }
        let text: String = self.letters[at..self.at].iter().collect();
        let split = text
            .find(|it: char| it.is_ascii_alphabetic())
            .unwrap_or(text.len());
        let (number, unit) = text.split_at(split);
        let unit = UNITS.iter().find(|(name, _)| *name == unit);
        let seconds = number
            .parse::<f64>()
            .ok()
            .zip(unit)
            .map(|(number, (_, unit))| number * unit);
        let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
        time.filter(|time| *time <= Duration::from_secs(86_400)).ok_or_else(|| {
            let message = format!("a time such as 30ms or 2s, of a day at most, belongs here, not {text:?}: the units are ns, us, ms, s, m");
            self.error(at, message)
        })
    }

    fn chance(&mut self, when: When) -> Read<Chance> {
        self.peek();
        let at = self.at;
        if matches!(when, When::Time(_)) {
            return self.wrong(at, "an event at a time has no chance: it occurs once");
        }
        while self
            .letters
            .get(self.at)
            .is_some_and(|it| it.is_ascii_digit() || *it == '.')
        {
            self.at += 1;
        }
        let text: String = self.letters[at..self.at].iter().collect();
        self.expect("%", "a chance is a percentage, such as ~0.1%")?;
        let percent = text.parse::<f64>().ok();
        match percent {
            Some(percent) if percent > 0.0 && percent <= 100.0 => {
                Ok(Chance((percent * 1e6).round().max(1.0) as u32))
            }
            _ => self.wrong(
                at,
                format!("a chance is above 0% and at most 100%, not {text}%"),
            ),
        }
    }

    fn acts(&mut self, what: What) -> Read<Vec<Act>> {
        let mut acts = Vec::new();
        loop {
            acts.push(self.act(what)?);
            if !self.takes("->") {
                return Ok(acts);
            }
        }
    }

    fn act(&mut self, what: What) -> Read<Act> {
        let word = self.word("what shall happen")?;
        match &*word.text {
            "lost" => Ok(Act::Lost),
            "off" => Ok(Act::Off),
            "delay" => Ok(Act::Delay(self.time()?)),
            "hold" => Ok(Act::Hold(self.time()?)),
            "after" => Ok(Act::After(self.time()?)),
            "bare" => {
                let word = self.word("a status or an event")?;
                if let Some(status) = status(&word.text) {
                    return Ok(Act::BareStatus(status, self.vendor()?));
                }
                Ok(Act::BareEvent(self.event(&word)?))
            }
            _ => self.named_act(&word, what),
        }
    }

    fn named_act(&mut self, word: &Word, what: What) -> Read<Act> {
        let name = &*word.text;
        if let What::Cm(_) = what {
            return match errno(name) {
                Some(number) => Ok(Act::Errno(number)),
                None => Ok(Act::Cm(self.cm_event(word)?)),
            };
        }
        if let Some(status) = status(name) {
            return Ok(Act::Status(status, self.vendor()?));
        }
        if let Some(event) = find(EVENTS, name.trim_start_matches("IBV_EVENT_")) {
            return Ok(Act::Event(event));
        }
        if let Some(number) = errno(name) {
            return Ok(Act::Errno(number));
        }
        let words = ["lost", "off", "delay", "hold", "after", "bare"].into_iter();
        let all = words.chain(names(STATUSES)).chain(names(EVENTS));
        let near = nearest(name, owned(all)).or_else(|| nearest_errno(name));
        self.wrong(
            word.at,
            format!(
                "{name} is no error number, status, event or other act{}",
                meant(near)
            ),
        )
    }

    fn vendor(&mut self) -> Read<u32> {
        let at = self.at;
        if !self.takes("vendor") {
            return Ok(0);
        }
        let code = self.number("the code of the device")?;
        u32::try_from(code).map_err(|_| self.error(at, "the code of a device has 32 bits"))
    }

    /// Checks that what happens can happen to what the rule is about.
    fn check(&self, word: &Word, rule: &Rule) -> Read<()> {
        let what = rule.what;
        let mut ends = None;
        for (place, act) in rule.acts.iter().enumerate() {
            if let Some(message) = unfit(what, rule, *act) {
                return self.wrong(word.at, message);
            }
            let is_later = rule.acts[..place]
                .iter()
                .any(|act| matches!(act, Act::After(_)));
            if is_later
                && !matches!(
                    act,
                    Act::Event(_) | Act::BareEvent(_) | Act::After(_) | Act::Off
                )
            {
                return self.wrong(
                    word.at,
                    format!("after a time only events happen: {act} belongs before `after`"),
                );
            }
            if matches!(
                act,
                Act::Errno(_) | Act::Status(..) | Act::BareStatus(..) | Act::Lost | Act::Cm(_)
            ) && let Some(first) = ends.replace(*act)
            {
                return self.wrong(word.at, format!("{first} and {act} exclude each other"));
            }
        }
        if matches!(rule.acts.last(), Some(Act::After(_))) {
            return self.wrong(
                word.at,
                "an event belongs after `after`, such as `after 2s->PORT_ACTIVE`",
            );
        }
        Ok(())
    }
}

fn status(name: &str) -> Option<WcStatus> {
    let name = name.strip_prefix("IBV_WC_").unwrap_or(name);
    find(STATUSES, name)
        .or_else(|| find(STATUSES, name.strip_suffix("_ERR")?))
        .or_else(|| (name == "FLUSH").then_some(WcStatus::WrFlushErr))
}

/// The filters that a rule about this can have.
fn keys(what: What) -> &'static [&'static str] {
    match what {
        What::Completion(Some(_)) => &["dev", "qp", "cq", "type", "peer"],
        What::Completion(None) => &["dev", "qp", "cq", "type", "op", "peer"],
        What::Event => &["dev", "qp", "cq", "srq", "type"],
        What::Library(_) | What::Cm(_) => &[],
        What::Verb(verb) => match verb {
            Verb::ModifyQp => &["dev", "qp", "type", "to", "peer"],
            Verb::PostSend => &["dev", "qp", "type", "op", "peer"],
            Verb::PostRecv
            | Verb::QueryQp
            | Verb::DestroyQp
            | Verb::BindMw
            | Verb::AttachMcast
            | Verb::DetachMcast
            | Verb::AttachCounter => &["dev", "qp", "type", "peer"],
            Verb::CreateQp => &["dev", "type"],
            Verb::ResizeCq | Verb::DestroyCq | Verb::PollCq | Verb::ReqNotifyCq => &["dev", "cq"],
            Verb::ModifySrq | Verb::QuerySrq | Verb::DestroySrq | Verb::PostSrqRecv => {
                &["dev", "srq"]
            }
            _ => &["dev"],
        },
    }
}

/// Why this cannot happen to what the rule is about.
fn unfit(what: What, rule: &Rule, act: Act) -> Option<String> {
    let is_verb = matches!(what, What::Verb(_) | What::Library(_));
    let is_completion = matches!(what, What::Completion(_));
    let is_timed = matches!(rule.when, When::Time(_));
    match act {
        Act::Errno(_) if is_completion => Some(format!(
            "a completion fails with a status such as RETRY_EXC, not with {act}"
        )),
        Act::Errno(_) if what == What::Event => {
            Some(format!("an event does not fail with {act}; get_async_event can"))
        }
        Act::Status(..) | Act::BareStatus(..) if !is_completion => Some(format!(
            "{act} is a status of completions (`wc`); {what} fails with an error number such as EINVAL"
        )),
        Act::Lost if is_verb => Some(format!(
            "{what} cannot be lost: completions (`wc`), events and cm.EVENT can"
        )),
        Act::Lost | Act::Delay(_) if is_timed => Some(
            "what happens at a time is an event such as PORT_ERR; an event of the device is lost or late at a count, as in event@1:lost".to_owned(),
        ),
        Act::Hold(_) if !is_completion => Some(format!(
            "only completions (`wc`) are held; {what} can be late, by `delay`"
        )),
        Act::Delay(_) if is_completion => Some(
            "completions are held, by `hold`: `delay` is for verbs and events".to_owned(),
        ),
        Act::Event(_) | Act::BareEvent(_) if matches!(what, What::Library(_) | What::Cm(_)) => {
            Some(format!("{what} is a call of the library: no event of a device follows from it"))
        }
        _ => None,
    }
}
