//! The side socket, which leases regions: length, message, length, message.

use crate::mutations::call::Went;
use crate::mutations::spoil::Spoiler;
use crate::mutations::told::Told;
use croupier::proto::region_reply::Reply;
use croupier::proto::region_request::Request;
use croupier::proto::*;
use prost::Message;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// A connection to it. The kernel drops the descriptors that come with leases, since nobody maps them here.
pub struct Side(UnixStream);

impl Side {
    pub async fn open(path: &str) -> Self {
        Self(UnixStream::connect(path).await.unwrap())
    }

    /// Sends what a spoiler makes of a request, and returns the last reply; `None` once the server has closed the connection.
    pub async fn ask(&mut self, request: Request, spoiler: &mut Spoiler, told: &mut Told) -> Went<Option<Reply>> {
        let mut last = None;
        for bytes in spoiler.pass(&RegionRequest { request: Some(request) }.encode_to_vec()) {
            let mut frame = (bytes.len() as u32).to_le_bytes().to_vec();
            frame.extend(bytes);
            // Fails if the connection has ended, which the reply will say.
            _ = self.0.write_all(&frame).await;
            last = self.reply().await?;
            told.side(&what(&last)?);
        }
        Ok(last)
    }

    async fn reply(&mut self) -> Went<Option<Reply>> {
        let read = async {
            let mut bytes = vec![0; self.0.read_u32_le().await? as usize];
            self.0.read_exact(&mut bytes).await.map(|_| bytes)
        };
        let read = tokio::time::timeout(Duration::from_secs(30), read).await.map_err(|_| "no reply at the side")?;
        let Ok(bytes) = read else { return Ok(None) };
        let reply = RegionReply::decode(bytes.as_slice()).map_err(|error| error.to_string())?;
        reply.reply.ok_or("an empty reply".to_owned()).map(Some)
    }
}

/// The kind of a reply, in a word.
fn what(reply: &Option<Reply>) -> Went<String> {
    Ok(match reply {
        None => "closed".to_owned(),
        Some(Reply::Welcome(_)) => "welcome".to_owned(),
        Some(Reply::Leased(lease)) if lease.bytes > 0 => "leased".to_owned(),
        Some(Reply::Released(_)) => "released".to_owned(),
        Some(Reply::Error(error)) if error.code > 0 && !error.message.is_empty() => error.reason.clone(),
        Some(strange) => return Err(format!("{strange:?}")),
    })
}
