//! Errors in messages: numbers at the limits of their types, lengths that fit nothing, fields that are missing, repeated, misplaced or from
//! another message, and bytes that are not a message at all.

use crate::mutations::tree::{self, Field, Value};
use crate::whole::draw::Draw;

/// How many fields of earlier messages are kept, to be put where they do not belong. Old ones are replaced.
const SEEN: usize = 512;

/// Integers and the limits of their types. The vocabularies of these tests have 50 tokens.
const NUMBERS: [u64; 22] = [
    0,
    1,
    2,
    3,
    4,
    7,
    16,
    31,
    49,
    50,
    51,
    255,
    256,
    257,
    65_536,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 32,
    1 << 63,
    u64::MAX,
];

const FLOATS: [f32; 16] = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    2.0,
    1e-10,
    1e10,
    3e38,
    -3e38,
    1e-45,
    f32::NAN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    0.999_999_94,
    1.000_000_1,
];

/// Spoils a share of the messages.
pub struct Spoiler {
    pub draw: Draw,
    /// The share of messages that are spoiled.
    share: f32,
    seen: Vec<Field>,
    /// How many were spoiled since this was last read.
    pub spoiled: u32,
}

impl Spoiler {
    /// A spoiler for the messages of one call, determined by a seed.
    pub fn new(seed: u64, share: f32) -> Self {
        Self { draw: Draw::new(seed, crate::support::VOCAB), share, seen: Vec::new(), spoiled: 0 }
    }

    /// The messages to send in place of this one: mostly one, and mostly the same.
    pub fn pass(&mut self, message: &[u8]) -> Vec<Vec<u8>> {
        let mut fields = tree::parse(message).expect("a message of ours");
        self.remember(&fields);
        if !self.draw.happens(self.share) {
            return vec![message.to_vec()];
        }
        self.spoiled += 1;
        if self.draw.happens(0.04) {
            return if self.draw.happens(0.5) { vec![] } else { vec![message.to_vec(); 2] };
        }
        for _ in 0..1 + self.draw.below(3) {
            self.change(&mut fields);
        }
        let mut bytes = tree::encode(&fields);
        if self.draw.happens(0.05) {
            self.break_bytes(&mut bytes);
        }
        vec![bytes]
    }

    fn remember(&mut self, fields: &[Field]) {
        for field in fields {
            if let Value::Message(inner) = &field.value {
                self.remember(inner);
            }
            if self.seen.len() < SEEN {
                self.seen.push(field.clone());
            } else if self.draw.happens(0.1) {
                let place = self.draw.below(SEEN as u32) as usize;
                self.seen[place] = field.clone();
            }
        }
    }

    /// Makes one change at one place.
    fn change(&mut self, fields: &mut Vec<Field>) {
        let count = tree::count(fields);
        if count == 0 {
            fields.push(self.any_field());
            return;
        }
        let mut at = self.draw.below(count as u32) as usize;
        tree::at(fields, &mut at, &mut |among, place| self.change_at(among, place));
    }

    fn change_at(&mut self, among: &mut Vec<Field>, place: usize) {
        match self.draw.below(20) {
            0 => _ = among.remove(place),
            1 => among.insert(place, among[place].clone()),
            2 => {
                let other = self.draw.below(among.len() as u32) as usize;
                among.swap(place, other);
            }
            3 if self.draw.happens(0.4) => among[place].number = self.number_of_field(among[place].number),
            4 => among.insert(place, self.any_field()),
            5 => self.replace(among, place),
            6 => {
                let copies = self.draw.one_of(&[2, 5, 40, 300]);
                let field = among[place].clone();
                among.splice(place..place, std::iter::repeat_n(field, copies));
            }
            _ => self.change_value(&mut among[place].value),
        }
    }

    /// Replaces a value by that of another field, mostly of the same type, since other types make a message malformed, whatever the value.
    fn replace(&mut self, among: &mut [Field], place: usize) {
        let value = self.any_field().value;
        let alike = std::mem::discriminant(&value) == std::mem::discriminant(&among[place].value);
        if alike || self.draw.happens(0.1) {
            among[place].value = value;
        }
    }

    fn number_of_field(&mut self, number: u32) -> u32 {
        match self.draw.below(3) {
            0 => number + 1,
            1 => number.saturating_sub(1).max(1),
            _ => 1 + self.draw.below(140),
        }
    }

    fn any_field(&mut self) -> Field {
        if !self.seen.is_empty() && self.draw.happens(0.8) {
            return self.seen[self.draw.below(self.seen.len() as u32) as usize].clone();
        }
        let value = match self.draw.below(4) {
            0 => Value::Varint(self.any_number()),
            1 => Value::Fixed64(self.draw.number().to_le_bytes()),
            2 => Value::Fixed32(self.any_float().to_le_bytes()),
            _ => Value::Bytes(self.any_bytes()),
        };
        Field { number: 1 + self.draw.below(140), value }
    }

    fn change_value(&mut self, value: &mut Value) {
        match value {
            Value::Varint(number) => {
                *number = match self.draw.below(4) {
                    0 => number.wrapping_add(1),
                    1 => number.wrapping_sub(1),
                    _ => self.any_number(),
                }
            }
            Value::Fixed64(raw) => {
                let whole = self.draw.one_of(&[0.0, -1.0, 1e9, 1e10, f64::NAN, f64::INFINITY, f64::MIN_POSITIVE]);
                *raw = if self.draw.happens(0.5) { whole.to_le_bytes() } else { self.draw.number().to_le_bytes() };
            }
            Value::Fixed32(raw) => *raw = self.any_float().to_le_bytes(),
            Value::Bytes(bytes) => self.change_bytes(bytes),
            Value::Message(fields) => match self.draw.below(6) {
                0 => fields.clear(),
                _ => self.change(fields),
            },
        }
    }

    /// Changes bytes: rows of logits, masks, packed numbers, texts.
    fn change_bytes(&mut self, bytes: &mut Vec<u8>) {
        match self.draw.below(9) {
            0 => bytes.clear(),
            1 => _ = bytes.pop(),
            2 => bytes.truncate(self.draw.below(bytes.len() as u32 + 1) as usize),
            3 => bytes.extend_from_within(..),
            4 => bytes.extend(vec![0; self.draw.one_of(&[1, 2, 4, 100, 200])]),
            5 => *bytes = self.any_bytes(),
            6 => {
                let noise = self.draw.number();
                bytes
                    .iter_mut()
                    .zip((0_u64..).map(|i| (noise.rotate_left(i as u32 % 64) ^ (i * 31)) as u8))
                    .for_each(|(b, n)| *b = n);
            }
            // One float, or all of them.
            7 => {
                let float = self.any_float().to_le_bytes();
                bytes.chunks_exact_mut(4).for_each(|chunk| chunk.copy_from_slice(&float));
            }
            _ => {
                let (float, chunks) = (self.any_float().to_le_bytes(), bytes.len() as u32 / 4);
                if chunks > 0 {
                    bytes[4 * self.draw.below(chunks) as usize..][..4].copy_from_slice(&float);
                }
            }
        }
    }

    /// Makes bytes that mostly no decoder accepts.
    fn break_bytes(&mut self, bytes: &mut Vec<u8>) {
        match self.draw.below(3) {
            0 => bytes.truncate(self.draw.below(bytes.len() as u32 + 1) as usize),
            1 => bytes.extend(self.any_bytes()),
            _ if bytes.is_empty() => {}
            _ => {
                let place = self.draw.below(bytes.len() as u32) as usize;
                bytes[place] ^= 1 << self.draw.below(8);
            }
        }
    }

    fn any_number(&mut self) -> u64 {
        if self.draw.happens(0.8) { self.draw.one_of(&NUMBERS) } else { self.draw.number() >> self.draw.below(64) }
    }

    fn any_float(&mut self) -> f32 {
        if self.draw.happens(0.8) { self.draw.one_of(&FLOATS) } else { f32::from_bits(self.draw.number() as u32) }
    }

    fn any_bytes(&mut self) -> Vec<u8> {
        let length = self.draw.one_of(&[0, 1, 3, 8, 32, 64, 200, 400, 5000]);
        (0..length).map(|_| self.draw.number() as u8).collect()
    }
}
