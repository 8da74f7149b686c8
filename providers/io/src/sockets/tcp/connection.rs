//! A connection that loses no octet between a frame and its socket.

use std::mem;
use std::sync::Arc;

use super::{Received, StreamError, TcpSocket};

/// A connected socket, and what it has not taken yet.
#[derive(Debug)]
pub struct Connection {
    socket: Arc<TcpSocket>,
    backlog: Vec<u8>,
    /// Octets of the backlog that have left.
    left: usize,
    finishes: bool,
}

impl Connection {
    /// Of a socket that is connected.
    pub fn new(socket: TcpSocket) -> Self {
        Self {
            socket: Arc::new(socket),
            backlog: Vec::new(),
            left: 0,
            finishes: false,
        }
    }

    /// The socket, which another thread may receive from.
    pub fn socket(&self) -> &Arc<TcpSocket> {
        &self.socket
    }

    /// Takes all of `bytes`, or nothing: whether it did. What the socket does not take now is copied and leaves with
    /// [`flush`](Self::flush); until it has, nothing more is taken.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn send(&mut self, bytes: &[u8]) -> Result<bool, StreamError> {
        if self.finishes || !self.flush()? {
            return Ok(false);
        }
        let sent = self.socket.send(bytes)?;
        if sent == 0 && !bytes.is_empty() {
            return Ok(false);
        }
        self.backlog.extend_from_slice(&bytes[sent..]);
        self.flush()?;
        Ok(true)
    }

    /// Sends what waits, as much as the socket takes; whether nothing waits any more.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn flush(&mut self) -> Result<bool, StreamError> {
        while self.left < self.backlog.len() {
            match self.socket.send(&self.backlog[self.left..])? {
                0 => return Ok(false),
                octets => self.left += octets,
            }
        }
        if !self.backlog.is_empty() {
            // Given back: most connections are idle most of the time.
            self.backlog = Vec::new();
            self.left = 0;
        }
        if mem::take(&mut self.finishes) {
            self.socket.finish()?;
        }
        Ok(true)
    }

    /// The socket, and what it has not taken yet.
    pub fn into_parts(mut self) -> (Arc<TcpSocket>, Vec<u8>) {
        self.backlog.drain(..self.left);
        (self.socket, self.backlog)
    }

    /// Octets that wait.
    pub fn waiting(&self) -> usize {
        self.backlog.len() - self.left
    }

    /// Receives as [`TcpSocket::receive`] does.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn receive(&self, into: &mut [u8]) -> Result<Received, StreamError> {
        self.socket.receive(into)
    }

    /// Sends no more than what waits, and then an end.
    ///
    /// # Errors
    /// The connection has ended.
    pub fn finish(&mut self) -> Result<(), StreamError> {
        self.finishes = true;
        self.flush().map(drop)
    }

    /// Ends the connection at once, with a reset.
    pub fn abort(&mut self) {
        self.backlog = Vec::new();
        self.left = 0;
        self.socket.abort();
    }
}
