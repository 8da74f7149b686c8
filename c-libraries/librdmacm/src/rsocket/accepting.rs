//! Accepting of connections: each listening socket has a thread for it, so that a peer is connected before the program
//! calls `raccept`.
//!
//! The source address of a request can be forged. So a request gets a QP with its memory, but no place among the
//! connections that wait for the program; it gets such a place when its peer completes the connection, which proves the
//! address.

use std::collections::VecDeque;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

use polyverbs_connection::{Incoming, Listener, Withdrawal};
use polyverbs_libibverbs::errno::Errno;
use verbs_api::provider::start_thread;

use super::device::Opened;
use super::protocol::ConnData;
use super::stream::Stream;
use super::waiting::AGAIN;

/// The most accepted requests whose peers have not completed the connection. Above that, a new request replaces the oldest:
/// with two thousand forged requests a second, a peer still has a quarter of a second to answer.
const MOST_UNPROVEN: usize = 512;
/// The most connections that wait for the program, whatever backlog it asks for, because each has its memory already. Later
/// requests stay in the backlog of the listener.
const MOST_WAITING: usize = 128;

/// The devices on which a socket listens, each with its listener.
type Listeners = Vec<(Arc<Opened>, Listener)>;

/// The accepting thread of a listening socket. The thread ends when this is dropped.
pub(crate) struct Accepting {
    tell: Sender<News>,
    thread: Option<JoinHandle<()>>,
}

enum News {
    /// A connection request has arrived, at the listener with this index.
    Asked(usize, Incoming),
    /// The attempt with this number has ended: its peer has completed the connection, or failed to.
    Ended(u64),
    /// The program has accepted a connection.
    Taken,
    Over,
}

impl Accepting {
    /// Starts the accepting thread.
    ///
    /// # Errors
    /// `EAGAIN`: the system refuses another thread.
    pub(crate) fn start(
        socket: &Arc<Stream>,
        listeners: Listeners,
        backlog: usize,
    ) -> Result<Self, Errno> {
        let (tell, told) = channel();
        let acceptor = Acceptor {
            socket: Arc::downgrade(socket),
            unasked: (0..listeners.len()).collect(),
            listeners,
            waiting: 0,
            most_waiting: backlog.clamp(1, MOST_WAITING),
            unproven: VecDeque::new(),
            attempts: 0,
            tell: tell.clone(),
        };
        let thread = start_thread("rsocket-accept", move || acceptor.run(&told));
        let thread = thread.map_err(|_| AGAIN)?;
        Ok(Self {
            tell,
            thread: Some(thread),
        })
    }

    /// Notes that the program has accepted a connection, so that there is room for another one.
    pub(crate) fn taken(&self) {
        let _ = self.tell.send(News::Taken);
    }

    /// Ends the accepting thread, and waits until it has ended.
    pub(crate) fn end(mut self) {
        let thread = self.thread.take();
        drop(self);
        let _ = thread.map(JoinHandle::join);
    }
}

impl Drop for Accepting {
    fn drop(&mut self) {
        let _ = self.tell.send(News::Over);
    }
}

/// A connection whose peer has not completed it yet.
struct Unproven {
    number: u64,
    stream: Arc<Stream>,
    answer: Withdrawal,
}

impl Unproven {
    fn end(self) {
        self.answer.withdraw();
        self.stream.end();
    }
}

struct Acceptor {
    socket: Weak<Stream>,
    listeners: Listeners,
    /// The indices of the listeners that were not asked for their next request.
    unasked: Vec<usize>,
    /// The number of connections that wait for the program. It may exceed `most_waiting`, because peers complete
    /// connections that were accepted before.
    waiting: usize,
    /// The number of waiting connections from which on the thread accepts no further requests.
    most_waiting: usize,
    unproven: VecDeque<Unproven>,
    attempts: u64,
    tell: Sender<News>,
}

impl Acceptor {
    fn run(mut self, told: &Receiver<News>) {
        self.hear();
        while let Ok(news) = told.recv() {
            match news {
                News::Asked(place, incoming) => {
                    self.unasked.push(place);
                    self.accept(place, incoming);
                }
                News::Ended(number) => self.hand_over(number),
                News::Taken => self.waiting -= 1,
                News::Over => break,
            }
            self.hear();
        }
        // The listeners are dropped first: they refuse requests that still arrive.
        drop(self.listeners);
        self.unproven.into_iter().for_each(Unproven::end);
    }

    /// Asks each listener for its next request while there is room for connections. Further requests stay in the listeners,
    /// so that their backlogs apply.
    fn hear(&mut self) {
        if self.waiting >= self.most_waiting {
            return;
        }
        for place in std::mem::take(&mut self.unasked) {
            let tell = self.tell.clone();
            let next = self.listeners[place].1.next();
            next.on_done(move |asked| {
                if let Ok(incoming) = asked {
                    let _ = tell.send(News::Asked(place, incoming));
                }
            });
        }
    }

    fn accept(&mut self, place: usize, incoming: Incoming) {
        // A request in another protocol is refused, as is every request once the socket is closed.
        let Some((socket, conn_data)) = self
            .socket
            .upgrade()
            .zip(ConnData::parse(incoming.private_data()))
        else {
            return;
        };
        if self.unproven.len() >= MOST_UNPROVEN {
            self.give_up_oldest();
        }
        let device = Arc::clone(&self.listeners[place].0);
        let (stream, qp, options) = loop {
            match socket.passive(&device, &incoming) {
                Ok(made) => break made,
                // There may be no memory for this request because the oldest one has it.
                Err(_) if self.give_up_oldest() => {}
                Err(_) => return,
            }
        };
        self.attempts += 1;
        let (number, tell, made) = (self.attempts, self.tell.clone(), Arc::downgrade(&stream));
        let Ok((accepted, answer)) = incoming.begin_accept(&qp, options) else {
            return stream.end();
        };
        self.unproven.push_back(Unproven {
            number,
            stream,
            answer,
        });
        accepted.on_done(move |done| {
            Stream::established(&made, done, conn_data);
            let _ = tell.send(News::Ended(number));
        });
    }

    fn give_up_oldest(&mut self) -> bool {
        let oldest = self.unproven.pop_front();
        oldest.map(Unproven::end).is_some()
    }

    fn hand_over(&mut self, number: u64) {
        let place = self.unproven.iter().position(|one| one.number == number);
        let Some(one) = place.and_then(|place| self.unproven.remove(place)) else {
            return;
        };
        let stream = one.stream;
        match self.socket.upgrade().filter(|_| stream.is_open()) {
            Some(socket) => {
                self.waiting += 1;
                socket.offer(stream);
            }
            None => stream.end(),
        }
    }
}
