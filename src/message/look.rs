//! Checks a request before it is decoded.
//!
//! Two bytes on the wire can be an empty sub-message that takes hundreds of bytes once decoded. So a message within the
//! size limit could still take hundreds of times its size. This check counts sub-messages without decoding anything,
//! and holds lists to their limits. It also finds what decoding would drop, so that it would not be done and nobody
//! would know: fields that the schema does not have, and all but the last of fields of which only one may be set. And a
//! message that is not protobuf ends in INVALID_ARGUMENT here, while tonic's own codec would report an internal fault.

use super::shape::Shape;
use crate::error::Error;
use crate::limits::Limits;
use crate::params::FieldError;
use std::collections::BTreeMap;

/// Most sub-messages of one request, of all kinds together.
const MAX_SUB_MESSAGES: usize = 1 << 18;

/// The largest number that a field may have in protobuf.
const LARGEST_FIELD: u64 = (1 << 29) - 1;

/// What decoding would drop, and the place of its field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Dropped {
    /// A field that the schema does not have.
    Unknown(FieldError),
    /// A field that is set together with another one, although only one of them may be.
    Together(FieldError),
}

impl Dropped {
    fn within(self, part: &str) -> Self {
        match self {
            Self::Unknown(field) => Self::Unknown(field.within(part)),
            Self::Together(field) => Self::Together(field.within(part)),
        }
    }
}

impl From<Dropped> for Error {
    fn from(dropped: Dropped) -> Self {
        match dropped {
            Dropped::Unknown(field) => Self::Unimplemented(field),
            Dropped::Together(field) => Self::Invalid(field),
        }
    }
}

/// What decoding would drop of openings and works: the first for each item of which it would drop any. Elsewhere it is
/// an error of the whole message.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct AllDropped {
    openings: BTreeMap<usize, Dropped>,
    works: BTreeMap<usize, Dropped>,
}

impl AllDropped {
    /// What would be dropped of an opening, or of a row of a stateless batch.
    pub(crate) fn of_opening(&mut self, at: usize) -> Option<Dropped> {
        self.openings.remove(&at)
    }

    /// What would be dropped of a work.
    pub(crate) fn of_work(&mut self, at: usize) -> Option<Dropped> {
        self.works.remove(&at)
    }
}

pub(super) fn malformed(error: prost::DecodeError) -> Error {
    Error::Malformed(error.to_string())
}

/// What a message may still contain.
struct Room<'a> {
    sub_messages: usize,
    /// Sequences that may still be closed. Closing a sequence that is not open is no mistake, but a list longer than
    /// the number of possible sequences is.
    close: usize,
    open: usize,
    /// Works of a step, or rows of a batch. Each takes at least one row.
    rows: usize,
    limits: &'a Limits,
    dropped: AllDropped,
}

impl<'a> Room<'a> {
    fn new(limits: &'a Limits) -> Self {
        let (open, rows) = (limits.max_sequences_per_stream, limits.max_rows_per_step);
        let close = limits.max_sequences;
        Self { sub_messages: MAX_SUB_MESSAGES, close, open, rows, limits, dropped: AllDropped::default() }
    }

    /// Takes room for a sub-message.
    fn take(&mut self, name: &str) -> Result<(), Error> {
        self.sub_messages = self.sub_messages.checked_sub(1).ok_or(Error::TooManyItems { limit: MAX_SUB_MESSAGES })?;
        let (left, setting, limit) = match name {
            "open[]" => (&mut self.open, "max_sequences_per_stream", self.limits.max_sequences_per_stream),
            "work[]" | "rows[]" => (&mut self.rows, "max_rows_per_step", self.limits.max_rows_per_step),
            _ => return Ok(()),
        };
        *left = left.checked_sub(1).ok_or_else(|| {
            let message = format!("has too many entries, {setting} is {limit}; split it");
            Error::invalid(name.trim_end_matches("[]"), message)
        })?;
        Ok(())
    }

    /// Takes room for `count` numbers of a list.
    fn take_numbers(&mut self, name: &str, count: usize) -> Result<(), Error> {
        self.close = self.close.checked_sub(count).ok_or_else(|| {
            let limit = self.limits.max_sequences;
            Error::invalid(name, format!("has too many entries, max_sequences is {limit}; split the step"))
        })?;
        Ok(())
    }

    /// Where to record what is dropped of the sub-message whose room was just taken, and the sub-message's index.
    fn item(&mut self, name: &str) -> Option<(&mut BTreeMap<usize, Dropped>, usize)> {
        let (open, rows) = (self.limits.max_sequences_per_stream, self.limits.max_rows_per_step);
        match name {
            "open[]" => Some((&mut self.dropped.openings, open - self.open - 1)),
            "rows[]" => Some((&mut self.dropped.openings, rows - self.rows - 1)),
            "work[]" => Some((&mut self.dropped.works, rows - self.rows - 1)),
            _ => None,
        }
    }
}

/// Counts the sub-messages of a request, and finds what decoding would drop of its openings and works.
///
/// # Errors
/// When there are too many parts, a field elsewhere would be dropped, or the bytes are no message.
pub(super) fn look(message: &[u8], shape: &Shape, limits: &Limits) -> Result<AllDropped, Error> {
    let mut room = Room::new(limits);
    match count(message, shape, &mut room)? {
        Some(dropped) => Err(dropped.into()),
        None => Ok(room.dropped),
    }
}

/// Counts down `room` for each sub-message in `message`. Returns the first thing that decoding would drop outside of
/// openings and works. The depth of the recursion is that of the shape.
fn count(message: &[u8], shape: &Shape, room: &mut Room<'_>) -> Result<Option<Dropped>, Error> {
    let (mut bytes, mut dropped, mut chosen) = (message, None, None);
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let number = field_number(tag)?;
        if !shape.has(number) {
            dropped.get_or_insert_with(|| Dropped::Unknown(unknown_field(number)));
        }
        if let Some(name) = shape.choice(number) {
            let before = chosen.replace(name).filter(|before| *before != name);
            before.map(|before| dropped.get_or_insert_with(|| Dropped::Together(set_together(name, before))));
        }
        match tag & 7 {
            0 => {
                varint(&mut bytes)?;
                shape.list(number).map_or(Ok(()), |name| room.take_numbers(name, 1))?;
            }
            1 => drop(take(&mut bytes, 8)?),
            5 => drop(take(&mut bytes, 4)?),
            2 => {
                let len = varint(&mut bytes)?;
                let field = take(&mut bytes, len)?;
                if let Some(name) = shape.list(number) {
                    // Each number ends with a byte below 128.
                    room.take_numbers(name, field.iter().filter(|byte| **byte < 128).count())?;
                }
                let Some((name, inner)) = shape.part(number) else { continue };
                room.take(name)?;
                let place = || place(name, message, tag, bytes.len());
                let Some(of_part) = count(field, inner, room).map_err(|e| e.within(&place()))? else { continue };
                match room.item(name) {
                    Some((items, at)) => drop(items.insert(at, of_part)),
                    None => drop(dropped.get_or_insert_with(|| of_part.within(&place()))),
                }
            }
            // Groups are older than proto3, and would hide what is in them.
            _ => return Err(Error::Malformed("groups are not part of this protocol".to_owned())),
        }
    }
    Ok(dropped)
}

/// The error for a field of which another is set already, although only one of both may be. Decoding would keep the last.
fn set_together(name: &str, before: &str) -> FieldError {
    FieldError::new(name, format!("is set together with {before}; send only one of them"))
}

/// The number of the field with this tag. A number that no schema can have is an error, because a newer schema cannot
/// have it either.
fn field_number(tag: u64) -> Result<u64, Error> {
    match tag >> 3 {
        0 => Err(Error::Malformed("a field has the number 0, which is not a valid field number".to_owned())),
        number if number > LARGEST_FIELD => {
            Err(Error::Malformed(format!("a field has a number above {LARGEST_FIELD}")))
        }
        number => Ok(number),
    }
}

/// The error for a field of which only the number is known.
fn unknown_field(number: u64) -> FieldError {
    let message =
        "is the number of a field that this server does not know; GetServerInfo reports its version and parameters";
    FieldError::new(number.to_string(), message)
}

/// The name of the field of `message` with this tag, followed by `left` more bytes; in a repeated field, with its
/// index.
fn place(name: &str, message: &[u8], tag: u64, left: usize) -> String {
    let Some(name) = name.strip_suffix("[]") else { return name.to_owned() };
    let (mut bytes, mut before) = (message, 0);
    while bytes.len() > left {
        // These bytes were read before without an error.
        let Ok(next) = varint(&mut bytes) else { break };
        let skipped = match next & 7 {
            0 => varint(&mut bytes).map(drop),
            1 => take(&mut bytes, 8).map(drop),
            5 => take(&mut bytes, 4).map(drop),
            _ => varint(&mut bytes).and_then(|len| take(&mut bytes, len)).map(drop),
        };
        if skipped.is_err() {
            break;
        }
        before += usize::from(next == tag && bytes.len() > left);
    }
    format!("{name}[{before}]")
}

fn take<'a>(bytes: &mut &'a [u8], len: u64) -> Result<&'a [u8], Error> {
    let taken = usize::try_from(len).ok().and_then(|len| bytes.split_at_checked(len));
    let (field, rest) =
        taken.ok_or_else(|| Error::Malformed("a field extends beyond the end of its message".to_owned()))?;
    *bytes = rest;
    Ok(field)
}

fn varint(bytes: &mut &[u8]) -> Result<u64, Error> {
    prost::encoding::decode_varint(bytes).map_err(malformed)
}

#[cfg(test)]
mod tests;
