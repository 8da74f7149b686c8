//! Which queue pair serves datagrams of an address: asked and answered, without a connection.

use std::net::SocketAddr;
use std::sync::Arc;

use verbs_api::qp::{AddressVector, QpType};
use verbs_api::{
    Context, Qp, Started, VerbError,
    ids::{Gid, LinkAddress, Port, Qpn},
};

use crate::backlog::{Backlog, QueuedRequest, RemovalWatch};
use crate::connector::{Connector, Request, begin, fits};
use verbs_api::provider::backend::ConnectError;
use verbs_api::provider::backend::{Answer, AnswerSink, Backend, ListenSink, Question, Token};

/// A queue pair for datagrams, and how to reach it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DatagramService {
    /// Its device.
    pub address: LinkAddress,
    /// Its identifier.
    pub gid: Gid,
    /// The queue pair.
    pub qp_num: Qpn,
    /// Its queue key.
    pub qkey: u32,
    /// What who answered said.
    pub private_data: Vec<u8>,
}

impl DatagramService {
    /// The path there from a port of this device, for an address handle.
    ///
    /// # Errors
    /// There is no such port, or the device was removed.
    pub fn path(&self, from: &Context, port_num: Port) -> Result<AddressVector, VerbError> {
        from.path_to(port_num, self.address, self.gid)
    }
}

impl Connector {
    /// Answers who asks which queue pair serves datagrams of an address; port 0 has one assigned. Ports of datagrams
    /// and of connections are different ones. With `backlog` questions waiting, others are refused; 0 for no limit.
    ///
    /// # Errors
    /// The address is in use; the device has no datagrams.
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
        let at = self.backend().listen_datagrams(at, sink)?;
        let _removal = self.watch(&queue.waiting);
        Ok(DatagramListener {
            queue,
            at,
            _removal,
        })
    }

    /// Asks which queue pair serves datagrams of an address.
    ///
    /// ```
    /// use polyverbs::wr::{self, UdDestination};
    /// # use polyverbs::connection::Connector;
    /// # use polyverbs::{ConnectOptions, QpOptions, Requirements, emulated};
    /// # let device = emulated::device("ib0", &Default::default())?.open(&Requirements::new())?;
    /// # let (pd, cq) = (device.alloc_pd().wait()?, device.create_cq(16).wait()?);
    /// # let near = pd.create_qp(QpOptions::ud(&cq)).wait()?;
    /// # let far = pd.create_qp(QpOptions::ud(&cq)).wait()?;
    /// # near.activate(ConnectOptions::new()).wait()?;
    /// # far.activate(ConnectOptions::new()).wait()?;
    /// # let connector = Connector::of(&device)?;
    /// # let listener = connector.listen_datagrams("192.0.2.1:7471".parse()?, 1)?;
    /// # let answerer = far.clone();
    /// # listener.next().on_done(move |question| question.unwrap().answer(&answerer, b"").unwrap());
    /// let service = connector.resolve(&device, listener.address(), b"").wait()?;
    /// let ah = pd.create_ah(service.path(&device, 1)?).wait()?;
    /// let to = UdDestination { ah, remote_qpn: service.qp_num, remote_qkey: service.qkey };
    /// near.post_one(wr::Send::new(b"hello").to(&to))?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn resolve(
        &self,
        context: &Context,
        to: SocketAddr,
        private_data: &[u8],
    ) -> Started<DatagramService, ConnectError> {
        if let Err(error) = fits(private_data, self.backend().private_data().resolve) {
            return Started::ready(Err(error));
        }
        let (started, request) = begin(context);
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

/// Takes questions. Dropped, it takes no more, and those that wait are refused.
///
/// ```
/// # use polyverbs::connection::Connector;
/// # use polyverbs::{ConnectOptions, QpOptions, Requirements, emulated};
/// # let device = emulated::device("ib0", &Default::default())?.open(&Requirements::new())?;
/// # let (pd, cq) = (device.alloc_pd().wait()?, device.create_cq(16).wait()?);
/// # let near = pd.create_qp(QpOptions::ud(&cq)).wait()?;
/// # let far = pd.create_qp(QpOptions::ud(&cq)).wait()?;
/// # near.activate(ConnectOptions::new()).wait()?;
/// # far.activate(ConnectOptions::new()).wait()?;
/// # let connector = Connector::of(&device)?;
/// let listener = connector.listen_datagrams("192.0.2.1:7471".parse()?, 8)?;
/// # let asked = connector.resolve(&device, listener.address(), b"");
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
    /// Where it listens.
    pub const fn address(&self) -> SocketAddr {
        self.at
    }

    /// The next question. Dropped before somebody has it, it is the next one still. Ends with
    /// [`VerbError::DeviceRemoved`] where the device has gone that the connector was made for.
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

/// Somebody asks which queue pair serves datagrams. Dropped, the answer is that there is none.
pub struct DatagramQuestion {
    backend: Arc<dyn Backend>,
    token: Option<Token>,
    question: Question,
}

impl DatagramQuestion {
    /// The device that asks, where the network tells.
    pub const fn from(&self) -> Option<LinkAddress> {
        self.question.from
    }

    /// The address that who asks says to have, where the network tells.
    pub const fn source(&self) -> Option<SocketAddr> {
        self.question.source
    }

    /// What who asks said.
    pub fn private_data(&self) -> &[u8] {
        &self.question.private_data
    }

    /// This queue pair does.
    ///
    /// # Errors
    /// It takes no datagrams, or has no queue key yet, or one that the device cannot name; too much private data. Then it is
    /// refused.
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
        self.backend.answer(token, Some(answer))
    }

    /// None does, for whoever asks this.
    pub fn refuse(self) {
        drop(self);
    }
}

impl QueuedRequest for DatagramQuestion {
    fn token(&self) -> Option<Token> {
        self.token
    }
}

impl Drop for DatagramQuestion {
    fn drop(&mut self) {
        if let Some(token) = self.token.take() {
            // Nobody is left to be told of a failure.
            let _ = self.backend.answer(token, None);
        }
    }
}

opaque!(DatagramListener, DatagramQuestion);
