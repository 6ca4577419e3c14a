//! A protobuf message without its schema: nested fields, as they are encoded in its bytes.

/// One field as it is encoded.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    pub number: u32,
    pub value: Value,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Value {
    Varint(u64),
    Fixed64([u8; 8]),
    Fixed32([u8; 4]),
    /// Text, packed numbers or anything else that cannot be read as a message.
    Bytes(Vec<u8>),
    /// Bytes that can be read as a message. That may include packed numbers, which are then changed like a message.
    Message(Vec<Field>),
}

impl Value {
    const fn wire_type(&self) -> u64 {
        match self {
            Self::Varint(_) => 0,
            Self::Fixed64(_) => 1,
            Self::Bytes(_) | Self::Message(_) => 2,
            Self::Fixed32(_) => 5,
        }
    }
}

/// The fields of these bytes, if they are exactly what [`encode`] makes of some fields.
pub fn parse(bytes: &[u8]) -> Option<Vec<Field>> {
    let (mut rest, mut fields) = (bytes, Vec::new());
    while !rest.is_empty() {
        let key = varint(&mut rest)?;
        let number = u32::try_from(key >> 3).ok().filter(|number| (1..1000).contains(number))?;
        let value = match key & 7 {
            0 => Value::Varint(varint(&mut rest)?),
            1 => Value::Fixed64(*take(&mut rest, 8)?.first_chunk()?),
            2 => {
                let length = usize::try_from(varint(&mut rest)?).ok()?;
                let inner = take(&mut rest, length)?;
                match parse(inner).filter(|fields| !fields.is_empty()) {
                    Some(fields) => Value::Message(fields),
                    None => Value::Bytes(inner.to_vec()),
                }
            }
            5 => Value::Fixed32(*take(&mut rest, 4)?.first_chunk()?),
            _ => return None,
        };
        fields.push(Field { number, value });
    }
    (encode(&fields) == bytes).then_some(fields)
}

pub fn encode(fields: &[Field]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for Field { number, value } in fields {
        put(u64::from(*number) << 3 | value.wire_type(), &mut bytes);
        match value {
            Value::Varint(number) => put(*number, &mut bytes),
            Value::Fixed64(raw) => bytes.extend(raw),
            Value::Fixed32(raw) => bytes.extend(raw),
            Value::Bytes(inner) => with_length(inner, &mut bytes),
            Value::Message(fields) => with_length(&encode(fields), &mut bytes),
        }
    }
    bytes
}

/// The number of fields, at all depths.
pub fn count(fields: &[Field]) -> usize {
    let inner = |field: &Field| if let Value::Message(fields) = &field.value { count(fields) } else { 0 };
    fields.iter().map(|field| 1 + inner(field)).sum()
}

/// Calls `work` at the `at`-th field, depth first, with the fields that it is among and its index there.
pub fn at<R>(fields: &mut Vec<Field>, at: &mut usize, work: &mut impl FnMut(&mut Vec<Field>, usize) -> R) -> Option<R> {
    for place in 0..fields.len() {
        if *at == 0 {
            return Some(work(fields, place));
        }
        *at -= 1;
        if let Value::Message(inner) = &mut fields[place].value
            && let Some(done) = self::at(inner, at, work)
        {
            return Some(done);
        }
    }
    None
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(taken)
}

fn varint(rest: &mut &[u8]) -> Option<u64> {
    prost::encoding::decode_varint(rest).ok()
}

fn put(number: u64, bytes: &mut Vec<u8>) {
    prost::encoding::encode_varint(number, bytes);
}

fn with_length(inner: &[u8], bytes: &mut Vec<u8>) {
    put(inner.len() as u64, bytes);
    bytes.extend(inner);
}
