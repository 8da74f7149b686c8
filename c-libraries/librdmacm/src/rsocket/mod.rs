//! Rsockets: sockets over RDMA, in the protocol of rdma-core's rsockets.
//!
//! ```text
//!  rsend, rrecv, rpoll …      calls: pointers and numbers of C          table: descriptors
//!       │
//!  stream, accepting          binding, connecting, waiting              options
//!       │
//!  stream_qp                  queue pair and memory                     datagram, device
//!       │
//!  flow, protocol             what may be sent; bytes on the wire
//! ```

mod accepting;
mod address;
pub mod calls;
mod datagram;
mod device;
mod flow;
mod options;
mod poll;
mod protocol;
mod repoll;
mod stream;
mod stream_qp;
mod table;
mod waiting;
