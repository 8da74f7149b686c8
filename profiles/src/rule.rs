//! Rules that a device obeys and that no attribute says: what programs have met on cards.
//!
//! A rule is written as its name and parameters: `budget qp=10, errno=EBUSY`.

use std::fmt;
use std::str::FromStr;

use nix::errno::Errno;
use polyverbs::qp::QpAttrMask;
use polyverbs::{Access, WcStatus};

/// A rule that a device obeys.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Rule {
    /// `attributes-remaining`: the maxima of objects that the device reports count free objects only.
    AttributesRemaining,
    /// `budget WHAT=N, errno=E`: all objects of the device share a number, whatever its attributes say. What would exceed it
    /// fails.
    Budget {
        /// The kind of things that the budget counts.
        of: Counted,
        /// How many there may be.
        most: u64,
        /// The error number beyond.
        errno: Errno,
    },
    /// `chain-max most=N, status=S`: of more requests in one post, all complete with this status.
    ChainMax {
        /// How many requests a post may have.
        most: u64,
        /// The status of all requests of a longer post.
        status: WcStatus,
    },
    /// `checks-unused errno=E`: the depth of a receive queue is checked although the queue pair has a shared one.
    ChecksUnused {
        /// The error number for a depth beyond `max_qp_wr`.
        errno: Errno,
    },
    /// `error-wc`: of a completion that failed, the opcode and the length are rubbish.
    ErrorWc,
    /// `inflight-bytes most=N, status=S`: a queue pair with more bytes outstanding fails.
    InflightBytes {
        /// How many bytes a queue pair may have outstanding.
        most: u64,
        /// The status of the request that exceeds it.
        status: WcStatus,
    },
    /// `inline-by-type rc=N, ud=N, errno=E`: inline data are limited by the type of the queue pair.
    InlineByType {
        /// The most bytes of a reliable connection.
        rc: Option<u64>,
        /// The most bytes of an unreliable connection.
        uc: Option<u64>,
        /// The most bytes of a datagram.
        ud: Option<u64>,
        /// The error number beyond.
        errno: Errno,
    },
    /// `inline-post errno=E`: inline data are promised when a queue pair is made, and refused when they are posted.
    InlinePost {
        /// The error number.
        errno: Errno,
    },
    /// `loopback-lost`: what a queue pair sends to its own device never arrives and never completes.
    LoopbackLost,
    /// `max-qp-wr-off-by entries=N, errno=E`: the last entries of the advertised `max_qp_wr` are the driver's own.
    MaxQpWrOffBy {
        /// How many entries fewer there are.
        entries: u64,
        /// The error number for a queue pair that wants them.
        errno: Errno,
    },
    /// `mr-access-refused access=A, errno=E`: a region with this right is refused, although the operation is claimed.
    MrAccessRefused {
        /// The right.
        access: Access,
        /// The error number.
        errno: Errno,
    },
    /// `qp-type-refused errno=E`: the error number for a queue pair of a type that the device lacks.
    QpTypeRefused {
        /// The error number.
        errno: Errno,
    },
    /// `query-qp-mask attributes=A|B, errno=E`: a query of a queue pair that asks for other attributes is refused as a whole.
    QueryQpMask {
        /// The attributes that can be queried, as the bits of `enum ibv_qp_attr_mask`.
        attributes: u32,
        /// The error number.
        errno: Errno,
    },
    /// `rd-atomic-clamped`: more outstanding reads than the device has are asked for, and silently fewer given.
    RdAtomicClamped,
    /// `usable-wr send=N, recv=N, errno=E`: fewer requests can be posted than the queue pair was made for.
    UsableWr {
        /// How many send-queue requests can be outstanding.
        send: Option<u64>,
        /// How many receives can be outstanding.
        recv: Option<u64>,
        /// The error number beyond.
        errno: Errno,
    },
    /// `zero-sge on=QUEUE, errno=E`: a request without any entry is refused.
    ZeroSge {
        /// The queue.
        on: Queue,
        /// The error number.
        errno: Errno,
    },
}

macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            const ALL: &'static [(&'static str, Self)] = &[$(($word, Self::$variant)),*];

            /// The word for it in rules.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),* }
            }
        }
    };
}

words! {
    /// What a budget counts.
    Counted {
        /// Queue pairs.
        Qp = "qp",
        /// Completion queues.
        Cq = "cq",
        /// Memory regions.
        Mr = "mr",
        /// Bytes of memory regions.
        MrBytes = "mr-bytes",
        /// Reads and atomics that queue pairs serve (`max_dest_rd_atomic`), from RTR on.
        ResRdAtom = "res-rd-atom",
        /// Entries of all send and receive queues.
        WrTotal = "wr-total",
    }
}

words! {
    /// A queue of a queue pair.
    Queue {
        /// The send queue.
        Send = "send",
        /// The receive queue.
        Recv = "recv",
    }
}

/// The names of the rules, each with its parameters.
const RULES: [(&str, &[&str]); 16] = [
    ("attributes-remaining", &[]),
    (
        "budget",
        &[
            "qp",
            "cq",
            "mr",
            "mr-bytes",
            "res-rd-atom",
            "wr-total",
            "errno",
        ],
    ),
    ("chain-max", &["most", "status"]),
    ("checks-unused", &["errno"]),
    ("error-wc", &[]),
    ("inflight-bytes", &["most", "status"]),
    ("inline-by-type", &["rc", "uc", "ud", "errno"]),
    ("inline-post", &["errno"]),
    ("loopback-lost", &[]),
    ("max-qp-wr-off-by", &["entries", "errno"]),
    ("mr-access-refused", &["access", "errno"]),
    ("qp-type-refused", &["errno"]),
    ("query-qp-mask", &["attributes", "errno"]),
    ("rd-atomic-clamped", &[]),
    ("usable-wr", &["send", "recv", "errno"]),
    ("zero-sge", &["on", "errno"]),
];

impl Rule {
    /// Returns the name by which the rule is turned off: that of its kind; of a budget, with what it counts.
    pub fn name(&self) -> String {
        let text = self.to_string();
        let kind = text.split(' ').next().unwrap_or_default();
        match self {
            Self::Budget { of, .. } => format!("{kind}-{}", of.word()),
            _ => kind.to_owned(),
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let optional = |name: &str, value: &Option<u64>| {
            value.map_or_else(String::new, |value| format!("{name}={value}, "))
        };
        match self {
            Self::AttributesRemaining => f.write_str("attributes-remaining"),
            Self::Budget { of, most, errno } => {
                write!(f, "budget {}={most}, errno={errno:?}", of.word())
            }
            Self::ChainMax { most, status } => {
                write!(f, "chain-max most={most}, status={}", status_name(*status))
            }
            Self::ChecksUnused { errno } => write!(f, "checks-unused errno={errno:?}"),
            Self::ErrorWc => f.write_str("error-wc"),
            Self::InflightBytes { most, status } => {
                write!(
                    f,
                    "inflight-bytes most={most}, status={}",
                    status_name(*status)
                )
            }
            Self::InlineByType { rc, uc, ud, errno } => {
                let [rc, uc, ud] =
                    [("rc", rc), ("uc", uc), ("ud", ud)].map(|(name, most)| optional(name, most));
                write!(f, "inline-by-type {rc}{uc}{ud}errno={errno:?}")
            }
            Self::InlinePost { errno } => write!(f, "inline-post errno={errno:?}"),
            Self::LoopbackLost => f.write_str("loopback-lost"),
            Self::MaxQpWrOffBy { entries, errno } => {
                write!(f, "max-qp-wr-off-by entries={entries}, errno={errno:?}")
            }
            Self::MrAccessRefused { access, errno } => {
                let names: Vec<_> = access.iter_names().map(|(name, _)| name).collect();
                write!(
                    f,
                    "mr-access-refused access={}, errno={errno:?}",
                    names.join("|")
                )
            }
            Self::QpTypeRefused { errno } => write!(f, "qp-type-refused errno={errno:?}"),
            Self::QueryQpMask { attributes, errno } => {
                let named = attribute_names().filter(|(_, bit)| attributes & bit != 0);
                let names: Vec<_> = named.map(|(name, _)| name).collect();
                write!(
                    f,
                    "query-qp-mask attributes={}, errno={errno:?}",
                    names.join("|")
                )
            }
            Self::RdAtomicClamped => f.write_str("rd-atomic-clamped"),
            Self::UsableWr { send, recv, errno } => {
                let [send, recv] =
                    [("send", send), ("recv", recv)].map(|(name, most)| optional(name, most));
                write!(f, "usable-wr {send}{recv}errno={errno:?}")
            }
            Self::ZeroSge { on, errno } => write!(f, "zero-sge on={}, errno={errno:?}", on.word()),
        }
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (name, rest) = text.trim().split_once(' ').unwrap_or((text.trim(), ""));
        let Some((_, known)) = RULES.iter().find(|(rule, _)| *rule == name) else {
            let all: Vec<_> = RULES.iter().map(|(rule, _)| *rule).collect();
            return Err(format!(
                "no rule is called {name}; there are {}",
                all.join(", ")
            ));
        };
        let given = Parameters::parse(name, known, rest)?;
        Ok(match name {
            "attributes-remaining" => Self::AttributesRemaining,
            "budget" => given.budget()?,
            "chain-max" => Self::ChainMax {
                most: given.number("most")?,
                status: given.status()?,
            },
            "checks-unused" => Self::ChecksUnused {
                errno: given.errno()?,
            },
            "error-wc" => Self::ErrorWc,
            "inflight-bytes" => Self::InflightBytes {
                most: given.number("most")?,
                status: given.status()?,
            },
            "inline-by-type" => {
                given.one_of(&["rc", "uc", "ud"])?;
                Self::InlineByType {
                    rc: given.optional("rc")?,
                    uc: given.optional("uc")?,
                    ud: given.optional("ud")?,
                    errno: given.errno()?,
                }
            }
            "inline-post" => Self::InlinePost {
                errno: given.errno()?,
            },
            "loopback-lost" => Self::LoopbackLost,
            "max-qp-wr-off-by" => Self::MaxQpWrOffBy {
                entries: given.number("entries")?,
                errno: given.errno()?,
            },
            "mr-access-refused" => Self::MrAccessRefused {
                access: given.access()?,
                errno: given.errno()?,
            },
            "qp-type-refused" => Self::QpTypeRefused {
                errno: given.errno()?,
            },
            "query-qp-mask" => Self::QueryQpMask {
                attributes: given.attributes()?,
                errno: given.errno()?,
            },
            "rd-atomic-clamped" => Self::RdAtomicClamped,
            "usable-wr" => {
                given.one_of(&["send", "recv"])?;
                Self::UsableWr {
                    send: given.optional("send")?,
                    recv: given.optional("recv")?,
                    errno: given.errno()?,
                }
            }
            _ => Self::ZeroSge {
                on: given.word("on", Queue::ALL)?,
                errno: given.errno()?,
            },
        })
    }
}

/// The parameters of a rule.
struct Parameters<'a> {
    rule: &'a str,
    given: Vec<(&'a str, &'a str)>,
}

impl<'a> Parameters<'a> {
    fn parse(rule: &'a str, known: &[&str], text: &'a str) -> Result<Self, String> {
        let mut given: Vec<(&str, &str)> = Vec::new();
        for clause in text.split(',').map(str::trim).filter(|it| !it.is_empty()) {
            let (key, value) = clause
                .split_once('=')
                .ok_or_else(|| format!("{rule}: {clause:?} is not of the form key=value"))?;
            let (key, value) = (key.trim(), value.trim());
            if !known.contains(&key) {
                let known = match known {
                    [] => "no parameters".to_owned(),
                    known => known.join(", "),
                };
                return Err(format!("{rule} has no parameter {key}; it has {known}"));
            }
            if given.iter().any(|(before, _)| *before == key) {
                return Err(format!("{rule}: {key} is given twice"));
            }
            given.push((key, value));
        }
        Ok(Self { rule, given })
    }

    fn find(&self, key: &str) -> Option<&'a str> {
        let found = self.given.iter().find(|(known, _)| *known == key);
        found.map(|(_, value)| *value)
    }

    fn text(&self, key: &str) -> Result<&'a str, String> {
        self.find(key)
            .ok_or_else(|| format!("{} needs the parameter {key}", self.rule))
    }

    fn one_of(&self, keys: &[&str]) -> Result<(), String> {
        match keys.iter().any(|key| self.find(key).is_some()) {
            true => Ok(()),
            false => Err(format!("{} needs one of {}", self.rule, keys.join(", "))),
        }
    }

    fn optional(&self, key: &str) -> Result<Option<u64>, String> {
        self.find(key).map(|_| self.number(key)).transpose()
    }

    fn number(&self, key: &str) -> Result<u64, String> {
        let text = self.text(key)?;
        text.parse()
            .map_err(|_| format!("{}: {key} is a number, not {text}", self.rule))
    }

    fn word<T: Copy>(&self, key: &str, all: &[(&str, T)]) -> Result<T, String> {
        let text = self.text(key)?;
        let found = all.iter().find(|(word, _)| *word == text);
        found.map(|(_, value)| *value).ok_or_else(|| {
            let known: Vec<_> = all.iter().map(|(word, _)| *word).collect();
            format!(
                "{}: {key} is one of {}, not {text}",
                self.rule,
                known.join(", ")
            )
        })
    }

    fn errno(&self) -> Result<Errno, String> {
        let text = self.text("errno")?;
        // ENOTSUP is another name of one number.
        let text = if text == "ENOTSUP" {
            "EOPNOTSUPP"
        } else {
            text
        };
        let mut all = (1..=133).map(Errno::from_raw);
        all.find(|known| *known != Errno::UnknownErrno && format!("{known:?}") == text)
            .ok_or_else(|| format!("{}: errno is a name such as EINVAL, not {text}", self.rule))
    }

    fn status(&self) -> Result<WcStatus, String> {
        let text = self.text("status")?;
        let mut all = (1..=21).map(WcStatus::from_code);
        all.find(|known| status_name(*known) == text)
            .ok_or_else(|| {
                format!(
                    "{}: status is that of a failed completion, such as RETRY_EXC_ERR, not {text}",
                    self.rule
                )
            })
    }

    fn attributes(&self) -> Result<u32, String> {
        let text = self.text("attributes")?;
        let mut mask = 0;
        for name in text.split('|').map(str::trim) {
            let found = attribute_names().find(|(known, _)| *known == name);
            let (_, bit) = found.ok_or_else(|| {
                let known: Vec<_> = attribute_names().map(|(name, _)| name).collect();
                format!(
                    "{}: attributes are some of {}, not {name}",
                    self.rule,
                    known.join(", ")
                )
            })?;
            mask |= bit;
        }
        Ok(mask)
    }

    fn access(&self) -> Result<Access, String> {
        let text = self.text("access")?;
        Access::from_name(text).ok_or_else(|| {
            let known: Vec<_> = Access::all().iter_names().map(|(name, _)| name).collect();
            format!(
                "{}: access is one of {}, not {text}",
                self.rule,
                known.join(", ")
            )
        })
    }

    fn budget(&self) -> Result<Rule, String> {
        let counted = Counted::ALL
            .iter()
            .filter(|(word, _)| self.find(word).is_some());
        let counted: Vec<_> = counted.collect();
        let [(word, of)] = counted[..] else {
            let known: Vec<_> = Counted::ALL.iter().map(|(word, _)| *word).collect();
            return Err(format!("budget needs exactly one of {}", known.join(", ")));
        };
        Ok(Rule::Budget {
            of: *of,
            most: self.number(word)?,
            errno: self.errno()?,
        })
    }
}

/// The names of the attributes of queue pairs, as in `enum ibv_qp_attr_mask` without `IBV_QP_`, with their bits.
fn attribute_names() -> impl Iterator<Item = (&'static str, u32)> {
    // The sizes of the queues, which a modify of this project does not change.
    const CAP: (&str, u32) = ("CAP", 1 << 19);
    let named = QpAttrMask::all().iter_names();
    named.map(|(name, bit)| (name, bit.bits())).chain([CAP])
}

/// Returns the name of a status in verbs, such as `RETRY_EXC_ERR`.
pub(crate) fn status_name(status: WcStatus) -> String {
    let mut name = String::new();
    for letter in format!("{status:?}").chars() {
        if letter.is_ascii_uppercase() && !name.is_empty() {
            name.push('_');
        }
        name.push(letter.to_ascii_uppercase());
    }
    name
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_reads_as_it_is_written() {
        for text in [
            "attributes-remaining",
            "budget qp=10, errno=EBUSY",
            "budget res-rd-atom=16, errno=EINVAL",
            "chain-max most=1, status=LOC_QP_OP_ERR",
            "checks-unused errno=EINVAL",
            "error-wc",
            "inflight-bytes most=1572864, status=RETRY_EXC_ERR",
            "inline-by-type rc=988, ud=512, errno=EINVAL",
            "inline-post errno=EINVAL",
            "loopback-lost",
            "max-qp-wr-off-by entries=1, errno=ENOMEM",
            "mr-access-refused access=REMOTE_ATOMIC, errno=EINVAL",
            "qp-type-refused errno=EOPNOTSUPP",
            "query-qp-mask attributes=STATE|QKEY|CAP, errno=EOPNOTSUPP",
            "rd-atomic-clamped",
            "usable-wr send=63, errno=ENOMEM",
            "zero-sge on=recv, errno=EINVAL",
        ] {
            let rule: Rule = text.parse().unwrap();
            assert_eq!(rule.to_string(), text);
        }
    }

    #[test]
    fn a_wrong_rule_says_what_would_be_right() {
        for (text, why) in [
            ("", "no rule is called ; there are attributes-remaining"),
            ("budgets qp=1", "no rule is called budgets"),
            ("budget errno=EBUSY", "budget needs exactly one of qp, cq"),
            (
                "budget qp=1, cq=1, errno=EBUSY",
                "budget needs exactly one of",
            ),
            ("budget qp=1", "budget needs the parameter errno"),
            ("budget qp=few, errno=EBUSY", "qp is a number, not few"),
            (
                "budget qp=1, errno=EWHAT",
                "errno is a name such as EINVAL, not EWHAT",
            ),
            ("budget qp=1, qp=2, errno=EBUSY", "qp is given twice"),
            (
                "error-wc errno=EINVAL",
                "error-wc has no parameter errno; it has no parameters",
            ),
            (
                "chain-max most=1, status=SUCCESS",
                "status is that of a failed completion",
            ),
            (
                "zero-sge on=both, errno=EINVAL",
                "on is one of send, recv, not both",
            ),
            (
                "usable-wr errno=EINVAL",
                "usable-wr needs one of send, recv",
            ),
            ("inline-post EINVAL", "is not of the form key=value"),
            (
                "mr-access-refused access=ALL, errno=EINVAL",
                "access is one of LOCAL_WRITE",
            ),
        ] {
            let told = text.parse::<Rule>().unwrap_err();
            assert!(told.contains(why), "{text}: {told}");
        }
    }
}
