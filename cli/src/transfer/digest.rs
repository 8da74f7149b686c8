//! Digests of files, computed on a thread of their own while the next bytes of the file are read or fetched.

use std::mem;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::{Builder, JoinHandle};

use clap::ValueEnum;
use sha2::{Digest as _, Sha256};

use super::{Result, no_thread};

/// The digest of the bytes that the client has read from its file or the server has written to its file.
pub(crate) type Digest = [u8; 32];

/// How many bytes are digested at one time, at least: with small pieces, a switch of threads for each would take longer than the
/// digest.
const BATCH: usize = 64 << 10;

/// An algorithm for digests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Algorithm {
    /// BLAKE3, the fastest
    #[default]
    Blake3,
    /// SHA-256, as sha256sum prints it
    Sha256,
}

impl Algorithm {
    /// The length of the longest name in bytes, with room for algorithms that a server does not know yet.
    pub(super) const LONGEST: usize = 15;

    /// Returns the name by which users, and client and server, call the algorithm.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Blake3 => "blake3",
            Self::Sha256 => "sha256",
        }
    }

    /// Returns the algorithm that the client names.
    pub(super) fn of_name(name: &str) -> Result<Self> {
        let known = Self::value_variants();
        let named = known.iter().find(|algorithm| algorithm.name() == name);
        named.copied().ok_or_else(|| {
            let known: Vec<_> = known.iter().map(|algorithm| algorithm.name()).collect();
            let known = known.join(" or ");
            format!("the digest {name:?} is not known there: choose {known}").into()
        })
    }

    // Digests the filled buffers in turn and returns each to the owner of the hasher.
    fn digest(self, filled: &Receiver<Vec<u8>>, digested: &Sender<Vec<u8>>) -> Digest {
        let each = |update: &mut dyn FnMut(&[u8])| {
            for mut buffer in filled {
                update(&buffer);
                buffer.clear();
                // The owner drops the hasher if the copy has failed.
                let _ = digested.send(buffer);
            }
        };
        match self {
            Self::Blake3 => {
                let mut state = blake3::Hasher::new();
                each(&mut |bytes| _ = state.update(bytes));
                state.finalize().into()
            }
            Self::Sha256 => {
                let mut state = Sha256::new();
                each(&mut |bytes| state.update(bytes));
                state.finalize().into()
            }
        }
    }
}

/// Computes the digest of a file on a thread of its own, which ends with the hasher. There are two buffers: the owner fills one
/// while the thread digests the other.
pub(super) struct Hasher {
    buffer: Vec<u8>,
    filled: Sender<Vec<u8>>,
    digested: Receiver<Vec<u8>>,
    thread: JoinHandle<Digest>,
}

impl Hasher {
    /// Starts the thread.
    pub(super) fn start(algorithm: Algorithm) -> Result<Self> {
        let (filled, to_digest) = mpsc::channel();
        let (done, digested) = mpsc::channel();
        let _ = done.send(Vec::new());
        let thread = Builder::new()
            .name("digest".to_owned())
            .spawn(move || algorithm.digest(&to_digest, &done))
            .map_err(|error| no_thread("digest", error))?;
        Ok(Self {
            buffer: Vec::new(),
            filled,
            digested,
            thread,
        })
    }

    /// Adds the next bytes of the file. If they fill the buffer, this waits until the thread has digested the other one.
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= BATCH {
            // The channels are closed if the thread has panicked, which `finish` reports.
            let free = self.digested.recv().unwrap_or_default();
            let _ = self.filled.send(mem::replace(&mut self.buffer, free));
        }
    }

    /// Waits for the digest of all bytes.
    pub(super) fn finish(self) -> Result<Digest> {
        let _ = self.filled.send(self.buffer);
        drop(self.filled);
        let digest = self.thread.join();
        digest.map_err(|_| "the thread for the digest panicked".into())
    }
}
