//! The part `control` of `bar`: operations that a program does once per object, such as registering memory and creating or
//! connecting queue pairs.

use anyhow::{Result, ensure};
use polyverbs::{
    Access, Completion, Features, Memory, Operations, PageList, Qp, QpOptions, connect_pair, wr,
};
use polyverbs_benches::cpu;
use polyverbs_benches::rig::Rig;
use polyverbs_benches::sample::{Samples, timed};

use crate::bar::{Arguments, RMW, rmw};
use crate::report::{NS, Row};

const LENGTH: usize = 64 << 10;
/// The number of control operations, such as creating a QP, whose mean time is one sample.
const TURNS: u64 = 200;

/// The rows measured so far, each with the time of one operation compared with a read-modify-write. `rounds` is the number
/// of samples that count, for each row.
struct Table {
    rounds: usize,
    rows: Vec<Row>,
}

impl Table {
    fn add(&mut self, name: &str, mut work: impl FnMut() -> Result<()>) -> Result<()> {
        self.add_prepared(name, || Ok(()), |()| work())
    }

    /// Measures `work` and adds its row under `name`. Each run of `work` takes an object that `prepare` has made; neither
    /// `prepare` nor the drop of what `work` returns is timed.
    fn add_prepared<T, U>(
        &mut self,
        name: &str,
        mut prepare: impl FnMut() -> Result<T>,
        mut work: impl FnMut(T) -> Result<U>,
    ) -> Result<()> {
        let figure = || {
            let prepared = (0..TURNS).map(|_| prepare()).collect::<Result<Vec<_>>>()?;
            let mut prepared = prepared.into_iter();
            let mut made = Vec::with_capacity(TURNS as usize);
            timed(TURNS, || {
                made.extend(prepared.next().map(&mut work).transpose()?);
                anyhow::Ok(())
            })
        };
        let samples = Samples::take(self.rounds, || Ok(rmw()), figure)?;
        self.rows.push(Row::compared(name, &samples, NS, RMW));
        Ok(())
    }
}

pub(crate) fn measure(arguments: &Arguments) -> Result<Vec<Row>> {
    cpu::pin();
    let rig = Rig::new(&arguments.device)?;
    let mut table = Table {
        rounds: arguments.rounds(),
        rows: Vec::new(),
    };
    let memory = Memory::zeroed(LENGTH)?;
    table.add("register and deregister 64 KiB", || {
        let region = rig.pd.register(&memory, rig.remote()).wait()?;
        Ok(region.deregister().wait()?)
    })?;
    if rig.context.features().contains(Features::BMME) {
        let cycle = fast_registration(&rig, &memory)?;
        table.add("fast-register and invalidate 64 KiB", cycle)?;
    }
    let cq = rig.context.create_cq(16).wait()?;
    let create = || -> Result<Qp> {
        let options = QpOptions::rc(&cq).max_send_wr(16).max_recv_wr(16);
        Ok(rig.pd.create_qp(options).wait()?)
    };
    table.add_prepared("create a queue pair", || Ok(()), |()| create())?;
    table.add("create and destroy a queue pair", || {
        Ok(create()?.destroy().wait()?)
    })?;
    let two = || anyhow::Ok((create()?, create()?));
    table.add_prepared("connect two queue pairs", two, |(near, far)| {
        connect_pair(&near, &far, Access::empty()).wait()?;
        Ok((near, far))
    })?;
    Ok(table.rows)
}

/// Connects two queue pairs and returns a closure that, in each call, posts a fast registration of the memory and a local
/// invalidation of its key, and polls the completions of both.
fn fast_registration(rig: &Rig, memory: &Memory) -> Result<impl FnMut() -> Result<()> + use<>> {
    let cq = rig.context.create_cq(16).wait()?;
    let operations = Operations::FAST_REGISTER | Operations::LOCAL_INV;
    let options = || QpOptions::rc(&cq).operations(operations);
    let near = rig.pd.create_qp(options()).wait()?;
    let far = rig.pd.create_qp(options()).wait()?;
    connect_pair(&near, &far, Access::empty()).wait()?;
    let pages = PageList::map(&[memory.into()], 4096, (LENGTH / 4096) as u32)?.list;
    let key = rig.pd.alloc_key((LENGTH / 4096) as u32).wait()?;
    let access = rig.remote();
    let mut completions: [Completion; 2] = Default::default();
    Ok(move || {
        let _peer = &far;
        key.advance();
        let register = wr::FastRegister::new(key.rkey(), &pages).access(access);
        near.post_one(register.signaled(1))?;
        near.post_one(wr::LocalInvalidate::new(key.rkey()).signaled(2))?;
        let done = cq.poll(&mut completions)?;
        ensure!(
            done.len() == 2 && done.iter().all(|done| done.status.is_success()),
            "a fast registration or its invalidation failed"
        );
        Ok(())
    })
}
