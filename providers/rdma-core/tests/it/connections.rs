//! Connections of the provider, made by this workspace's own librdmacm.

use std::error::Error;
use std::net::SocketAddr;

use polyverbs_connection::{
    Accepted, ConnectError, Connection, ConnectionOptions, Connector, Incoming, Listener, flush,
};
use test_kit::waiting::PATIENCE;
use verbs_api::capability::BaselineGaps;
use verbs_api::completion::WcStatus;
use verbs_api::qp::{QpAttributes, QpState};
use verbs_api::wr::{self, ReceiveRequest, UdDestination};
use verbs_api::{Access, Context, Cq, Memory, PathOptions, Pd, Qp, QpOptions, Started, VerbError};

use crate::common;

type Outcome = Result<(), Box<dyn Error>>;

fn open(name: &str) -> Context {
    common::open(name)
}

fn address_of(device: &str) -> SocketAddr {
    match device {
        "ib0@libibverbs" => SocketAddr::from(([127, 0, 0, 2], 0)),
        _ => SocketAddr::from(([127, 0, 0, 1], 0)),
    }
}

const BOTH: [&str; 2] = ["ib0@libibverbs", "iw0@libibverbs"];

/// A device with two queue pairs and a listener.
struct Rig {
    pd: Pd,
    cq: Cq,
    near: Qp,
    far: Qp,
    connector: Connector,
    listener: Listener,
}

fn done<T, E>(mut started: Started<T, E>) -> Result<T, Box<dyn Error>>
where
    T: Send + 'static,
    E: From<VerbError> + Error + Send + 'static,
{
    Ok(started.wait_for(PATIENCE)?.ok_or("nothing came in time")?)
}

/// The private data of the refusal.
fn refusal<T: Send + 'static>(
    mut asked: Started<T, ConnectError>,
) -> Result<Vec<u8>, Box<dyn Error>> {
    match asked.wait_for(PATIENCE) {
        Err(ConnectError::Refused { private_data, .. }) => Ok(private_data),
        Err(other) => Err(other.into()),
        Ok(_) => Err("it was not refused in time".into()),
    }
}

impl Rig {
    fn new(device: &str) -> Result<Self, Box<dyn Error>> {
        let context = open(device);
        let pd = context.alloc_pd().wait()?;
        let cq = context.create_cq(64).wait()?;
        let qp = || pd.create_qp(QpOptions::rc(&cq)).wait();
        let (near, far) = (qp()?, qp()?);
        let connector = Connector::of(&context)?;
        let listener = connector.listen(address_of(device), 8)?;
        Ok(Self {
            pd,
            cq,
            near,
            far,
            connector,
            listener,
        })
    }

    fn ask(&self, options: ConnectionOptions) -> Started<Accepted, ConnectError> {
        let to = self.listener.address();
        self.connector.request(&self.near, to, options)
    }

    fn accept(
        &self,
        incoming: Incoming,
        options: ConnectionOptions,
    ) -> Started<Connection, ConnectError> {
        incoming.accept(&self.far, options)
    }

    fn connect(&self) -> Result<(Connection, Connection), Box<dyn Error>> {
        let granted = PathOptions::new().access(Access::REMOTE_WRITE | Access::REMOTE_READ);
        let options = || ConnectionOptions::new().path(granted);
        let asked = self.ask(options());
        let agreed = self.accept(done(self.listener.next())?, options());
        let near = done(done(asked)?.complete())?;
        Ok((near, done(agreed)?))
    }

    fn next(&self) -> Result<(u64, WcStatus), Box<dyn Error>> {
        let next = self.cq.next().wait_for(PATIENCE)?.ok_or("no completion")?;
        Ok((next.wr_id, next.status))
    }

    /// Sends a message, a write and a read from one end to the other.
    fn carry(&self) -> Outcome {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        let (here, there) = (Memory::zeroed(64)?, Memory::zeroed(64)?);
        let near = self.pd.register(&here, access).wait()?;
        let far = self.pd.register(&there, access).wait()?;
        here.write(0, b"over librdmacm")?;
        self.far
            .post_receive(ReceiveRequest::new(1, far.sge(32, 32)?))?;
        self.near
            .post_one(wr::Send::new(near.sge(0, 14)?).signaled(2))?;
        self.near
            .post_one(wr::Write::new(near.sge(0, 14)?, far.remote(0)).signaled(3))?;
        self.near
            .post_one(wr::Read::new(near.sge(32, 14)?, far.remote(0)).signaled(4))?;
        let mut seen = Vec::new();
        for _ in 0..4 {
            seen.push(self.next()?);
        }
        seen.sort_by_key(|&(wr_id, _)| wr_id);
        assert_eq!(seen, [1, 2, 3, 4].map(|wr_id| (wr_id, WcStatus::Success)));
        let mut read = [0; 14];
        for (memory, at) in [(&there, 32), (&there, 0), (&here, 32)] {
            memory.read(at, &mut read)?;
            assert_eq!(&read, b"over librdmacm");
        }
        Ok(())
    }
}

fn said(private_data: &[u8], expected: &[u8]) {
    assert_eq!(&private_data[..expected.len()], expected);
}

// covers 7.89
#[test]
fn both_ends_get_each_others_private_data_and_data_flows() -> Outcome {
    for device in BOTH {
        let rig = Rig::new(device)?;
        let granted = PathOptions::new().access(Access::REMOTE_WRITE | Access::REMOTE_READ);
        let options = |says: &[u8]| ConnectionOptions::new().path(granted).private_data(says);
        let asked = rig.ask(options(b"who is there?").reads(3, 5));
        let incoming = done(rig.listener.next())?;
        said(incoming.private_data(), b"who is there?");
        // Requests over iWARP do not carry the queue pair number.
        assert!(device == BOTH[1] || incoming.remote_qpn() == rig.near.qp_num());
        let offered = incoming.offered_reads();
        assert_eq!((offered.inbound, offered.outbound), (5, 3), "{device}");
        assert_eq!(
            incoming.from().map(|from| from.ip()),
            Some(rig.listener.address().ip())
        );
        let agreed = rig.accept(incoming, options(b"somebody"));
        let accepted = done(asked)?;
        said(accepted.private_data(), b"somebody");
        let _near = done(accepted.complete())?;
        let _far = done(agreed)?;
        for qp in [&rig.near, &rig.far] {
            assert_eq!(qp.query()?.state, QpState::Rts);
        }
        rig.carry()?;
    }
    Ok(())
}

// covers 7.89
#[test]
fn a_refused_queue_pair_gets_the_reason_and_may_ask_again() -> Outcome {
    for device in BOTH {
        let rig = Rig::new(device)?;
        let asked = rig.ask(ConnectionOptions::new());
        done(rig.listener.next())?.reject(b"not today")?;
        said(&refusal(asked)?, b"not today");
        let _connections = rig.connect()?;
        rig.carry()?;
    }
    Ok(())
}

// covers 7.89
#[test]
fn without_a_listener_the_refusal_has_no_private_data() -> Outcome {
    for device in BOTH {
        let rig = Rig::new(device)?;
        let to = rig.listener.address();
        let Rig {
            listener,
            connector,
            near,
            ..
        } = rig;
        drop(listener);
        let asked = connector.connect(&near, to, ConnectionOptions::new());
        assert!(refusal(asked)?.is_empty(), "{device}");
    }
    Ok(())
}

// covers 7.89
#[test]
fn an_end_that_gives_up_fails_the_other_end() -> Outcome {
    for device in BOTH {
        let rig = Rig::new(device)?;
        let asked = rig.ask(ConnectionOptions::new());
        let agreed = rig.accept(done(rig.listener.next())?, ConnectionOptions::new());
        drop(done(asked)?);
        // Over iWARP the connection is established by then.
        match done(agreed) {
            Ok(far) => done(far.disconnected())?,
            Err(error) => {
                let given_up = error.downcast_ref();
                let is_told = matches!(
                    given_up,
                    Some(ConnectError::Aborted | ConnectError::Refused { .. })
                );
                assert!(is_told, "{device}: {error}");
            }
        }
        let rig = Rig::new(device)?;
        let asked = rig.ask(ConnectionOptions::new());
        drop(done(rig.listener.next())?);
        refusal(asked)?;
    }
    Ok(())
}

// covers 7.89
#[test]
fn a_disconnect_of_either_end_is_reported_to_the_other() -> Outcome {
    for device in BOTH {
        let rig = Rig::new(device)?;
        let (near, far) = rig.connect()?;
        let ended = near.disconnected();
        let memory = Memory::zeroed(64)?;
        let room = rig.pd.register(&memory, Access::LOCAL_WRITE).wait()?;
        rig.far
            .post_receive(ReceiveRequest::new(7, room.sge_all()))?;
        done(far.disconnect())?;
        assert_eq!(rig.next()?, (7, WcStatus::WrFlushErr), "{device}");
        done(ended)?;
        done(near.disconnect())?;
        let rig = Rig::new(device)?;
        let (near, far) = rig.connect()?;
        drop(near);
        done(far.disconnected())?;
        done(flush(&rig.far))?;
    }
    Ok(())
}

// covers 7.89
#[test]
fn an_address_of_another_device_is_refused_with_its_name() -> Outcome {
    for (device, other) in [("ib0@libibverbs", "iw0"), ("iw0@libibverbs", "ib0")] {
        let context = open(device);
        let connector = Connector::of(&context)?;
        let [own, foreign] = match device {
            "ib0@libibverbs" => BOTH,
            _ => [BOTH[1], BOTH[0]],
        };
        let refused = connector.listen(address_of(foreign), 0);
        let refused = refused.err().ok_or("it listens")?.to_string();
        assert!(refused.contains(other), "{refused}");
        let listener = connector.listen(address_of(own), 0)?;
        let again = connector.listen(listener.address(), 0);
        let taken = ConnectError::AddressInUse {
            address: listener.address(),
            holder: None,
        };
        assert_eq!(again.err(), Some(taken));
        let nowhere = connector.listen("192.0.2.250:0".parse()?, 0);
        let nowhere = nowhere.err().ok_or("it listens")?.to_string();
        assert!(nowhere.contains("no address of a device"), "{nowhere}");
    }
    Ok(())
}

/// The queue key of every datagram service of librdmacm.
const QKEY: u32 = 0x0123_4567;

// covers 7.89
#[test]
fn a_datagram_service_is_resolved_and_receives() -> Outcome {
    let context = open("ib0@libibverbs");
    let pd = context.alloc_pd().wait()?;
    let cq = context.create_cq(16).wait()?;
    let ud = |qkey| -> Result<Qp, VerbError> {
        let qp = pd.create_qp(QpOptions::ud(&cq)).wait()?;
        qp.activate(PathOptions::new().qkey(qkey)).wait()?;
        Ok(qp)
    };
    let (near, far, other) = (ud(QKEY)?, ud(QKEY)?, ud(0x1111_1111)?);
    let connector = Connector::of(&context)?;
    let listener = connector.listen_datagrams(address_of("ib0@libibverbs"), 8)?;
    let ask = || connector.resolve(listener.address(), b"who serves?");

    let asked = ask();
    let question = done(listener.next())?;
    said(question.private_data(), b"who serves?");
    question.answer(&far, b"this one")?;
    let service = done(asked)?;
    said(&service.private_data, b"this one");
    assert_eq!((service.qp_num, service.qkey), (far.qp_num(), QKEY));
    let ah = pd.create_ah(service.path(&context, 1)?).wait()?;
    let memory = Memory::zeroed(64)?;
    let mr = pd.register(&memory, Access::LOCAL_WRITE).wait()?;
    far.post_receive(ReceiveRequest::new(1, mr.sge_all()))?;
    let to = UdDestination {
        ah,
        remote_qpn: service.qp_num,
        remote_qkey: service.qkey,
    };
    near.post_one(wr::Send::new(b"hello".as_slice()).to(&to).signaled(2))?;
    for _ in 0..2 {
        let next = cq.next().wait_for(PATIENCE)?.ok_or("no completion")?;
        next.success()?;
    }

    let asked = ask();
    let refused = done(listener.next())?.answer(&other, b"");
    let refused = refused.err().ok_or("it was answered")?.to_string();
    assert!(refused.contains("0x1234567"), "{refused}");
    refusal(asked)?;

    let asked = ask();
    done(listener.next())?.reject(b"not here")?;
    said(&refusal(asked)?, b"not here");
    Ok(())
}

// covers 7.89
#[test]
fn iwarp_has_no_datagram_services() -> Outcome {
    let context = open("iw0@libibverbs");
    let connector = Connector::of(&context)?;
    let refused = connector.listen_datagrams(address_of("iw0@libibverbs"), 0);
    let expected = VerbError::UnsupportedVerb("listen_datagrams");
    assert_eq!(refused.err(), Some(ConnectError::Verb(expected)));
    Ok(())
}

// covers 7.89
#[test]
fn iwarp_queue_pairs_that_name_each_other_are_connected() -> Outcome {
    let rig = Rig::new("iw0@libibverbs")?;
    let access = PathOptions::new().access(Access::REMOTE_WRITE | Access::REMOTE_READ);
    let first = rig.near.connect(&rig.far.endpoint()?, access);
    let second = rig.far.connect(&rig.near.endpoint()?, access);
    done(first)?;
    done(second)?;
    rig.carry()?;

    // The end of a queue pair is reported to one that is connected to it, and to one that waits for
    // it.
    let alone = rig.pd.create_qp(QpOptions::rc(&rig.cq)).wait()?;
    let waiting = alone.connect(&rig.far.endpoint()?, access);
    let own = alone.connect(&alone.endpoint()?, access);
    assert!(done(own).is_err());
    let gone = rig.far.endpoint()?;
    rig.far
        .destroy()
        .wait()
        .map_err(|refused| format!("{refused:?}"))?;
    let missed = done(waiting).err().ok_or("it was connected")?.to_string();
    assert!(missed.contains("Connector"), "{missed}");
    let refused = alone.connect(&gone, access);
    let refused = done(refused).err().ok_or("it was connected")?.to_string();
    assert!(refused.contains("Connector"), "{refused}");
    Ok(())
}

// covers 7.89
#[test]
fn a_waiting_iwarp_queue_pair_is_cancelled_and_reconnected() -> Outcome {
    let rig = Rig::new("iw0@libibverbs")?;
    let access = PathOptions::new().access(Access::REMOTE_WRITE | Access::REMOTE_READ);
    let (at_near, at_far) = (rig.near.endpoint()?, rig.far.endpoint()?);
    for called_off in [QpState::Err, QpState::Reset] {
        let mut waiting = rig.near.connect(&at_far, access);
        let [_, rtr, _] = rig.near.connect_steps(&at_far, access)?;
        let refused = rig.near.modify(rtr).wait();
        let gap = BaselineGaps::NO_MODIFY_TO_RTR;
        assert_eq!(refused, Err(VerbError::BaselineGap(gap)));
        let to = QpAttributes::new().qp_state(called_off);
        rig.near.modify(to).wait()?;
        let ended = waiting.wait_for(PATIENCE);
        assert_eq!(ended, Err(VerbError::Canceled));
        assert_eq!(rig.near.query()?.state, called_off);
        rig.near
            .modify(QpAttributes::new().qp_state(QpState::Reset))
            .wait()?;
    }
    let first = rig.far.connect(&at_near, access);
    done(rig.near.connect(&at_far, access))?;
    done(first)?;
    rig.carry()
}
