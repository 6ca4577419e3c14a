//! A worker's end of the side socket, as a program in another language would implement it.

use crate::proto::region_reply::Reply;
use crate::proto::region_request::Request;
use crate::proto::{
    AttachRegion, LeaseRegion, RegionError, RegionHello, RegionLease, RegionReply, RegionRequest, ReleaseRegion,
};
use crate::region::pass;
use crate::region::worker::Window;
use prost::Message;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Longest reply that is read.
const MAX_REPLY_BYTES: usize = 64 << 10;

/// A connection to the side socket. Its regions end when it ends.
#[derive(Debug)]
pub struct SideClient {
    socket: UnixStream,
}

/// A region that is mapped.
#[derive(Debug)]
pub struct Leased {
    /// The lease, by which steps name the region.
    pub lease: RegionLease,
    /// The mapped memory.
    pub window: Window,
    /// The descriptor that was mapped.
    pub descriptor: OwnedFd,
}

/// Why a region cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum SideError {
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The server refused the request.
    #[error("{}: {}", .0.reason, .0.message)]
    Refused(RegionError),
    /// The server's answer does not belong to the request.
    #[error("unexpected answer: {0:?}")]
    OutOfTurn(Option<Reply>),
}

impl SideClient {
    /// Connects without sending anything.
    ///
    /// # Errors
    /// If nobody listens.
    pub fn open(path: &Path) -> io::Result<Self> {
        Ok(Self { socket: UnixStream::connect(path)? })
    }

    /// Connects and presents a stream's token.
    ///
    /// # Errors
    /// [`SideError`].
    pub fn connect(path: &Path, token: &[u8]) -> Result<Self, SideError> {
        let mut client = Self::open(path)?;
        match client.ask(Request::Hello(RegionHello { token: token.to_vec() }))?.0 {
            Reply::Welcome(_) => Ok(client),
            other => Err(unexpected(other)),
        }
    }

    /// Leases a region and maps it.
    ///
    /// # Errors
    /// [`SideError`].
    pub fn lease(&mut self, bytes: u64) -> Result<Leased, SideError> {
        self.map(Request::Lease(LeaseRegion { bytes, device: None }))
    }

    /// Maps a region that is leased already.
    ///
    /// # Errors
    /// [`SideError`].
    pub fn attach(&mut self, region_id: u64, generation: u64) -> Result<Leased, SideError> {
        self.map(Request::Attach(AttachRegion { region_id, generation }))
    }

    fn map(&mut self, request: Request) -> Result<Leased, SideError> {
        match self.ask(request)? {
            (Reply::Leased(lease), descriptors) => {
                let Some(descriptor) = descriptors.into_iter().next() else {
                    return Err(SideError::OutOfTurn(Some(Reply::Leased(lease))));
                };
                let len = usize::try_from(lease.bytes).map_err(io::Error::other)?;
                Ok(Leased { window: Window::map(&descriptor, len)?, lease, descriptor })
            }
            (other, _) => Err(unexpected(other)),
        }
    }

    /// Gives a region back.
    ///
    /// # Errors
    /// [`SideError`].
    pub fn release(&mut self, lease: &RegionLease) -> Result<(), SideError> {
        let RegionLease { region_id, generation, .. } = *lease;
        match self.ask(Request::Release(ReleaseRegion { region_id, generation }))?.0 {
            Reply::Released(_) => Ok(()),
            other => Err(unexpected(other)),
        }
    }

    /// Sends a request. Returns the reply and the descriptors that came with it.
    ///
    /// # Errors
    /// [`SideError`].
    pub fn ask(&mut self, request: Request) -> Result<(Reply, Vec<OwnedFd>), SideError> {
        let message = RegionRequest { request: Some(request) }.encode_to_vec();
        let len = u32::try_from(message.len()).map_err(io::Error::other)?;
        self.socket.write_all(&[&len.to_le_bytes()[..], &message].concat())?;
        self.reply()
    }

    /// Reads a reply.
    ///
    /// # Errors
    /// [`SideError`].
    pub fn reply(&mut self) -> Result<(Reply, Vec<OwnedFd>), SideError> {
        let (mut len, mut got, mut descriptors) = ([0; 4], 0, Vec::new());
        while got < len.len() {
            let (more, beside) = pass::receive(&self.socket, &mut len[got..])?;
            if more == 0 {
                return Err(SideError::Io(io::ErrorKind::UnexpectedEof.into()));
            }
            got += more;
            descriptors.extend(beside);
        }
        let len = u32::from_le_bytes(len) as usize;
        if len > MAX_REPLY_BYTES {
            return Err(SideError::Io(io::ErrorKind::InvalidData.into()));
        }
        let mut bytes = vec![0; len];
        self.socket.read_exact(&mut bytes)?;
        let reply = RegionReply::decode(bytes.as_slice()).map_err(io::Error::other)?.reply;
        reply.map(|reply| (reply, descriptors)).ok_or(SideError::OutOfTurn(None))
    }

    /// The underlying socket.
    #[must_use]
    pub fn socket(&self) -> &UnixStream {
        &self.socket
    }
}

fn unexpected(reply: Reply) -> SideError {
    match reply {
        Reply::Error(error) => SideError::Refused(error),
        other => SideError::OutOfTurn(Some(other)),
    }
}
