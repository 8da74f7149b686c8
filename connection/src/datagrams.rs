//! Service ID resolution (SIDR): a program asks a peer, without a connection, which datagram queue pair serves an address.

use std::net::SocketAddr;
use std::sync::Arc;

use verbs_api::qp::{AddressVector, QpType};
use verbs_api::{
    Context, Qp, Started, VerbError,
    ids::{Gid, LinkAddress, Port, Qpn},
};

use crate::backlog::{Backlog, QueuedRequest, RemovalWatch};
use crate::connector::{Connector, Request, fits};
use verbs_api::provider::backend::{
    Answer, AnswerSink, Backend, ConnectError, ListenSink, Question, Refusal, Token,
};

/// A peer's datagram queue pair, and how to reach it: the answer to [`Connector::resolve`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatagramService {
    /// The link address of the queue pair's device.
    pub address: LinkAddress,
    /// The GID of the queue pair's port.
    pub gid: Gid,
    /// The number of the queue pair.
    pub qp_num: Qpn,
    /// The Q_Key that datagrams to the queue pair need.
    pub qkey: u32,
    /// The private data of the peer's answer.
    pub private_data: Vec<u8>,
}

impl DatagramService {
    /// Returns the path from a port of this device to the queue pair, for an address handle.
    ///
    /// # Errors
    /// There is no such port, or the device was removed.
    pub fn path(&self, from: &Context, port_num: Port) -> Result<AddressVector, VerbError> {
        from.path_to(port_num, self.address, self.gid)
    }
}

impl Connector {
    /// Listens for peers that resolve the datagram service at an address; for port 0 a port is assigned. Datagram services
    /// and connections have separate ports. The backlog is as for [`listen`](Self::listen).
    ///
    /// # Errors
    /// The address is in use, or the transport has no datagrams.
    pub fn listen_datagrams(
        &self,
        at: SocketAddr,
        backlog: usize,
    ) -> Result<DatagramListener, ConnectError> {
        let queue = Arc::new(Questions {
            backend: Arc::clone(self.backend()),
            waiting: Backlog::new(backlog),
        });
        let sink = Arc::clone(&queue) as Arc<dyn ListenSink<Question>>;
        let at = self.backend().listen_datagrams(at, backlog, sink)?;
        let _removal = self.watch(&queue.waiting);
        Ok(DatagramListener {
            queue,
            at,
            _removal,
        })
    }

    /// Asks the peer at an address for the datagram queue pair of its service.
    ///
    /// ```
    /// use polyverbs::wr::{self, UdDestination};
    /// # use polyverbs::connection::Connector;
    /// # use polyverbs::{PathOptions, QpOptions, Requirements, emulated};
    /// # let device = emulated::device("ib0", &Default::default())?.open(&Requirements::new())?;
    /// # let (pd, cq) = (device.alloc_pd().wait()?, device.create_cq(16).wait()?);
    /// # let near = pd.create_qp(QpOptions::ud(&cq)).wait()?;
    /// # let far = pd.create_qp(QpOptions::ud(&cq)).wait()?;
    /// # near.activate(PathOptions::new()).wait()?;
    /// # far.activate(PathOptions::new()).wait()?;
    /// # let connector = Connector::of(&device)?;
    /// # let listener = connector.listen_datagrams("192.0.2.1:7471".parse()?, 1)?;
    /// # let answerer = far.clone();
    /// # listener.next().on_done(move |question| question.unwrap().answer(&answerer, b"").unwrap());
    /// let service = connector.resolve(listener.address(), b"").wait()?;
    /// let ah = pd.create_ah(service.path(&device, 1)?).wait()?;
    /// let to = UdDestination { ah, remote_qpn: service.qp_num, remote_qkey: service.qkey };
    /// near.post_one(wr::Send::new(b"hello").to(&to))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resolve(
        &self,
        to: SocketAddr,
        private_data: &[u8],
    ) -> Started<DatagramService, ConnectError> {
        if let Err(error) = fits(private_data, self.backend().private_data().resolve) {
            return Started::ready(Err(error));
        }
        let (started, request) = self.begin();
        let sink = Arc::new(Asking(Arc::clone(&request)));
        if let Err(error) = self.backend().resolve(to, private_data.to_vec(), sink) {
            request.end(Err(error));
        }
        started
    }
}

struct Asking(Arc<Request<DatagramService>>);

impl AnswerSink for Asking {
    fn answered(&self, answer: Result<Answer, ConnectError>) {
        self.0.end(answer.map(|answer| DatagramService {
            address: answer.address,
            gid: answer.gid,
            qp_num: answer.qp_num,
            qkey: answer.qkey,
            private_data: answer.private_data,
        }));
    }
}

/// Listens for peers that resolve a datagram service. Dropping it ends that, and refuses the pending questions.
///
/// ```
/// # use polyverbs::connection::Connector;
/// # use polyverbs::{PathOptions, QpOptions, Requirements, emulated};
/// # let device = emulated::device("ib0", &Default::default())?.open(&Requirements::new())?;
/// # let (pd, cq) = (device.alloc_pd().wait()?, device.create_cq(16).wait()?);
/// # let near = pd.create_qp(QpOptions::ud(&cq)).wait()?;
/// # let far = pd.create_qp(QpOptions::ud(&cq)).wait()?;
/// # near.activate(PathOptions::new()).wait()?;
/// # far.activate(PathOptions::new()).wait()?;
/// # let connector = Connector::of(&device)?;
/// let listener = connector.listen_datagrams("192.0.2.1:7471".parse()?, 8)?;
/// # let asked = connector.resolve(listener.address(), b"");
/// let question = listener.next().wait()?;
/// question.answer(&far, b"chat")?; // `far` is for datagrams, and activated
/// # assert_eq!(asked.wait()?.qp_num, far.qp_num());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct DatagramListener {
    queue: Arc<Questions>,
    at: SocketAddr,
    _removal: RemovalWatch,
}

struct Questions {
    backend: Arc<dyn Backend>,
    waiting: Arc<Backlog<DatagramQuestion>>,
}

impl DatagramListener {
    /// Returns the address at which it listens.
    pub const fn address(&self) -> SocketAddr {
        self.at
    }

    /// Returns a future of the next question. If it is dropped, the question stays in the backlog. Fails with
    /// [`VerbError::DeviceRemoved`] when the connector's device was removed.
    pub fn next(&self) -> Started<DatagramQuestion, ConnectError> {
        self.queue.waiting.next()
    }
}

impl Drop for DatagramListener {
    fn drop(&mut self) {
        self.queue.backend.unlisten_datagrams(self.at);
        self.queue.waiting.close();
    }
}

impl ListenSink<Question> for Questions {
    fn asked(&self, token: Token, question: Question) {
        self.waiting.push(DatagramQuestion {
            backend: Arc::clone(&self.backend),
            token: Some(token),
            question,
        });
    }

    fn withdrawn(&self, token: Token) {
        self.waiting.withdraw(token);
    }
}

/// A peer's request to resolve a datagram service. Dropping it without an answer refuses it.
pub struct DatagramQuestion {
    backend: Arc<dyn Backend>,
    token: Option<Token>,
    question: Question,
}

impl DatagramQuestion {
    /// Returns the link address of the peer's device; `None` where the network does not report it.
    pub const fn from(&self) -> Option<LinkAddress> {
        self.question.from
    }

    /// Returns the socket address that the peer states as its own; `None` where the network does not report it.
    pub const fn source(&self) -> Option<SocketAddr> {
        self.question.source
    }

    /// Returns the private data of the peer's request.
    pub fn private_data(&self) -> &[u8] {
        &self.question.private_data
    }

    /// Answers the question with this datagram queue pair.
    ///
    /// # Errors
    /// The queue pair is not a datagram one, has no Q_Key yet or one that the backend cannot send, or the private data is
    /// too long. The question is refused then.
    pub fn answer(mut self, qp: &Qp, private_data: &[u8]) -> Result<(), ConnectError> {
        fits(private_data, self.backend.private_data().answer)?;
        if qp.qp_type() != QpType::Ud {
            return Err(VerbError::argument("qp", "it takes no datagrams").into());
        }
        let no_key = || VerbError::argument("qp", "it has no queue key yet");
        let qkey = qp.query()?.attributes.qkey.ok_or_else(no_key)?;
        let endpoint = qp.endpoint()?;
        let answer = Answer {
            address: endpoint.address,
            gid: endpoint.gid,
            qp_num: endpoint.qp_num,
            qkey,
            private_data: private_data.to_vec(),
        };
        let token = self.token.take().ok_or(ConnectError::Aborted)?;
        self.backend.answer(token, answer)
    }

    /// Refuses the question, and sends this private data to the peer.
    ///
    /// # Errors
    /// The private data is too long: the question is refused without it.
    pub fn reject(mut self, private_data: &[u8]) -> Result<(), ConnectError> {
        fits(private_data, self.backend.private_data().answer)?;
        self.end(Refusal::Program, private_data);
        Ok(())
    }
}

impl QueuedRequest for DatagramQuestion {
    fn token(&self) -> Option<Token> {
        self.token
    }

    fn refuse(mut self, why: Refusal) {
        self.end(why, &[]);
    }
}

impl DatagramQuestion {
    fn end(&mut self, why: Refusal, private_data: &[u8]) {
        if let Some(token) = self.token.take() {
            self.backend.refuse(token, why, private_data.to_vec());
        }
    }
}

impl Drop for DatagramQuestion {
    fn drop(&mut self) {
        self.end(Refusal::Program, &[]);
    }
}

opaque!(DatagramListener, DatagramQuestion);
