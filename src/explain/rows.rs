//! Rows of logits in files: arrays of numpy, bare numbers in binary, or in writing.

use crate::files;
use crate::params::MAX_VOCAB_SIZE;
use crate::sampling::logits::Dtype;
use std::io;

/// Larger files are not read.
const LARGEST: u64 = 1 << 30;
/// Nor are longer ones of numbers in writing, which is enough for every row.
const LARGEST_TEXT: usize = 64 << 20;
/// Characters that a mistake repeats of a file.
const SHOWN: usize = 32;
const NPY: &[u8] = b"\x93NUMPY";
const ZIP: &[u8] = b"PK\x03\x04";

/// Which row of which file.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Place {
    /// The file; `None`: standard input.
    pub file: Option<std::path::PathBuf>,
    /// The format of bare binary numbers, or of an array that does not name its own.
    pub dtype: Option<Dtype>,
    /// Logits in a row; `None`: the last dimension of an array, or all that are there.
    pub vocab_size: Option<usize>,
    /// Which row, from 0.
    pub row: usize,
}

/// One row.
#[derive(Debug, Clone, PartialEq)]
pub struct Row {
    /// Its number format.
    pub dtype: Dtype,
    /// Its numbers, little endian.
    pub bytes: Vec<u8>,
}

/// The numbers of a file.
struct Numbers<'a> {
    dtype: Dtype,
    bytes: std::borrow::Cow<'a, [u8]>,
    /// Numbers in a row, as far as the file says so.
    width: Option<usize>,
}

/// Reads one row.
///
/// # Errors
/// What is wrong, in words.
pub(super) fn read(place: &Place) -> Result<Row, String> {
    let bytes = match &place.file {
        Some(path) => files::read(path, LARGEST),
        None => files::at_most(io::stdin().lock(), LARGEST),
    }?;
    row(&bytes, place)
}

/// The row of a file with these bytes.
fn row(bytes: &[u8], place: &Place) -> Result<Row, String> {
    let numbers = match place.dtype {
        _ if bytes.starts_with(NPY) => array(bytes, place.dtype)?,
        _ if bytes.starts_with(ZIP) => {
            return Err(
                "is a zip archive, as torch.save and numpy.savez write them; numpy.save the row alone".to_owned()
            );
        }
        Some(_)
            if !bytes.is_empty()
                && bytes.iter().all(|&byte| between(byte.into()) || b"+-.0123456789e".contains(&byte)) =>
        {
            return Err("has numbers in writing; leave --dtype out, which is for bare binary numbers".to_owned());
        }
        Some(dtype) => Numbers { dtype, bytes: bytes.into(), width: None },
        None => written(bytes)?,
    };
    let size = numbers.dtype.size();
    let count = numbers.bytes.len() / size;
    if !numbers.bytes.len().is_multiple_of(size) {
        return Err(format!(
            "has {} bytes, which are no whole number of {}",
            numbers.bytes.len(),
            numbers.dtype.name()
        ));
    }
    let width = place.vocab_size.or(numbers.width).unwrap_or(count);
    if count == 0 || width == 0 {
        return Err("has no logits".to_owned());
    }
    // Sums of masses are right up to here, as on the wire.
    if width > MAX_VOCAB_SIZE as usize {
        return Err(format!(
            "has {width} logits in a row, at most {MAX_VOCAB_SIZE}; say with --vocab-size how many a row has"
        ));
    }
    if !count.is_multiple_of(width) {
        return Err(format!("has {count} logits, which are no whole rows of {width}"));
    }
    let mut rows = numbers.bytes.chunks_exact(width * size);
    let Some(bytes) = rows.nth(place.row) else {
        let last = count / width - 1;
        return Err(format!("has rows 0 to {last} of {width} logits; --row {} is not among them", place.row));
    };
    Ok(Row { dtype: numbers.dtype, bytes: bytes.to_vec() })
}

/// A piece of a file as a mistake repeats it.
fn shown(piece: &str) -> String {
    piece.chars().filter(|c| !c.is_control()).take(SHOWN).collect()
}

/// What stands between numbers in writing.
fn between(c: char) -> bool {
    c.is_whitespace() || matches!(c, ',' | '[' | ']')
}

/// Numbers in writing.
fn written(bytes: &[u8]) -> Result<Numbers<'_>, String> {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Err(
            "is neither an array of numpy nor text; name the format of bare binary numbers: --dtype f32".to_owned()
        );
    };
    if bytes.len() > LARGEST_TEXT {
        return Err(format!(
            "has more than {LARGEST_TEXT} bytes of text; give the row alone, or bare binary numbers with --dtype"
        ));
    }
    let mut numbers = Vec::new();
    for word in text.split(between).filter(|word| !word.is_empty()) {
        let number: f32 =
            word.parse().map_err(|_| format!("logit {}: \"{}\" is not a number", numbers.len(), shown(word)))?;
        numbers.push(number);
    }
    Ok(Numbers { dtype: Dtype::F32, bytes: Dtype::F32.encode(&numbers).into(), width: None })
}

/// An array as `numpy.save` writes it (NEP 1): a magic, a version, the length of the header, the header, the numbers.
fn array(bytes: &[u8], named: Option<Dtype>) -> Result<Numbers<'_>, String> {
    let cut = || "is an array of numpy that ends too soon".to_owned();
    let length_bytes = match bytes.get(NPY.len()).ok_or_else(cut)? {
        1 => 2,
        2 | 3 => 4,
        version => return Err(format!("is an array of numpy of version {version}, which is not known here")),
    };
    let start = NPY.len() + 2;
    let length = bytes.get(start..start + length_bytes).ok_or_else(cut)?;
    let length = length.iter().rev().fold(0usize, |sum, &byte| sum << 8 | usize::from(byte));
    let (header, numbers) = bytes[start + length_bytes..].split_at_checked(length).ok_or_else(cut)?;
    let header = String::from_utf8_lossy(header);
    let dtype = dtype_of(value(&header, "descr").unwrap_or_default(), named)?;
    let dimensions = dimensions(value(&header, "shape").unwrap_or_default())?;
    if dimensions.len() > 1 && value(&header, "fortran_order").is_some_and(|order| order.starts_with("True")) {
        return Err("is an array in Fortran order; save numpy.ascontiguousarray of it".to_owned());
    }
    let count = dimensions.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
    if count.and_then(|count| count.checked_mul(dtype.size())) != Some(numbers.len()) {
        return Err(format!(
            "is an array of {}, but has {} bytes of numbers, which its shape does not make",
            dtype.name(),
            numbers.len()
        ));
    }
    Ok(Numbers { dtype, bytes: numbers.into(), width: dimensions.last().copied() })
}

/// What follows a key in a header: `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`.
fn value<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = header.split_once(&format!("'{key}':"))?;
    Some(rest.trim_start())
}

fn dtype_of(descr: &str, named: Option<Dtype>) -> Result<Dtype, String> {
    let descr = &*shown(descr.split('\'').nth(1).unwrap_or_default());
    match (descr, named) {
        ("<f4", None | Some(Dtype::F32)) => Ok(Dtype::F32),
        ("<f2", None | Some(Dtype::F16)) => Ok(Dtype::F16),
        // numpy itself has no bfloat16: libraries write it as two bytes of anything, or as an integer.
        ("|V2" | "<V2" | "<u2" | "<i2", Some(dtype)) if dtype.size() == 2 => Ok(dtype),
        ("|V2" | "<V2" | "<u2" | "<i2", None) => {
            Err(format!("is an array of \"{descr}\"; say what these two bytes are: --dtype bf16 or f16"))
        }
        ("<f4" | "<f2", Some(dtype)) => {
            Err(format!("is an array of \"{descr}\"; --dtype {} does not fit", dtype.name()))
        }
        _ => Err(format!(
            "is an array of \"{descr}\"; logits are float32 or float16, little endian: save them with astype('float32')"
        )),
    }
}

fn dimensions(shape: &str) -> Result<Vec<usize>, String> {
    let inner = shape.strip_prefix('(').and_then(|rest| rest.split_once(')')).map(|(inner, _)| inner);
    let parts = inner.into_iter().flat_map(|inner| inner.split(',')).map(str::trim).filter(|part| !part.is_empty());
    let dimensions: Result<Vec<usize>, _> = parts.map(str::parse).collect();
    dimensions
        .ok()
        .filter(|dimensions| !dimensions.is_empty())
        .ok_or_else(|| "is an array without dimensions".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn npy(descr: &str, shape: &str, numbers: &[u8]) -> Vec<u8> {
        let header = format!("{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n");
        let length = (header.len() as u16).to_le_bytes();
        [NPY, &[1, 0], &length, header.as_bytes(), numbers].concat()
    }

    fn place(dtype: Option<Dtype>, vocab_size: Option<usize>, row: usize) -> Place {
        Place { file: None, dtype, vocab_size, row }
    }

    #[test]
    fn the_three_forms_are_read() {
        let numbers = Dtype::F32.encode(&[1.0, 2.5, f32::NEG_INFINITY, -3.0]);
        let all = Row { dtype: Dtype::F32, bytes: numbers.clone() };
        let last = Row { dtype: Dtype::F32, bytes: numbers[8..].to_vec() };
        let text = b"[[1, 2.5],\n [-Infinity -3e0]]";
        assert_eq!(row(text, &Place::default()).unwrap(), all);
        assert_eq!(row(text, &place(None, Some(2), 1)).unwrap(), last);
        assert_eq!(row(&numbers, &place(Some(Dtype::F32), None, 0)).unwrap(), all);
        assert_eq!(row(&numbers, &place(Some(Dtype::F32), Some(2), 1)).unwrap(), last);
        assert_eq!(row(&npy("<f4", "(4,)", &numbers), &Place::default()).unwrap(), all);
        assert_eq!(row(&npy("<f4", "(1, 2, 2)", &numbers), &place(None, None, 1)).unwrap(), last);
        let half = Row { dtype: Dtype::Bf16, bytes: vec![0x80, 0x3F] };
        assert_eq!(row(&npy("|V2", "(1,)", &half.bytes), &place(Some(Dtype::Bf16), None, 0)).unwrap(), half);
    }

    #[test]
    fn what_is_wrong_is_told() {
        let told = |bytes: &[u8], place: Place| row(bytes, &place).unwrap_err();
        assert_eq!(told(b"1, 2, x\n", Place::default()), "logit 2: \"x\" is not a number");
        assert_eq!(told(b"[]", Place::default()), "has no logits");
        assert_eq!(told(b"1 2 3", place(None, Some(2), 0)), "has 3 logits, which are no whole rows of 2");
        assert_eq!(told(b"1 2", place(None, None, 1)), "has rows 0 to 0 of 2 logits; --row 1 is not among them");
        assert!(told(b"\xFF\xFE", Place::default()).contains("--dtype"));
        assert!(told(b"\xFF\xFE\x00", place(Some(Dtype::F16), None, 0)).starts_with("has 3 bytes"));
        assert!(told(b"PK\x03\x04...", Place::default()).contains("numpy.save"));
        assert!(told(&npy("<f8", "(1,)", &[0; 8]), Place::default()).contains("astype"));
        assert!(told(&npy("<V2", "(1,)", &[0; 2]), Place::default()).contains("--dtype bf16"));
        assert!(told(&npy("<f4", "(1,)", &[0; 4]), place(Some(Dtype::F16), None, 0)).contains("does not fit"));
        assert!(told(&npy("<f4", "(2,)", &[0; 4]), Place::default()).contains("has 4 bytes"));
        assert_eq!(told(&npy("<f4", "(4, 0)", &[]), Place::default()), "has no logits");
        assert_eq!(told(b"", place(Some(Dtype::F32), None, 0)), "has no logits");
        assert!(told(b"1 2 3 4\n", place(Some(Dtype::F32), None, 0)).contains("leave --dtype out"));
        let many = vec![0; 2 * ((1 << 20) + 1)];
        assert!(
            told(&many, place(Some(Dtype::F16), None, 0)).starts_with("has 1048577 logits in a row, at most 1048576")
        );
        assert!(!told(&npy("\u{1b}[31mRED", "(1,)", &[0; 4]), Place::default()).contains('\u{1b}'));
        assert!(told(&npy("<f4", "()", &[0; 4]), Place::default()).contains("without dimensions"));
        assert!(told(&npy("<f4", "(99999999999, 99999999999)", &[0; 4]), Place::default()).contains("has 4 bytes"));
        let columns = b"{'descr': '<f4', 'fortran_order': True, 'shape': (1, 1), }";
        let fortran = [NPY, &[1, 0, columns.len() as u8, 0], columns, &[0; 4]].concat();
        assert!(told(&fortran, Place::default()).contains("ascontiguousarray"));
        for cut in 0..npy("<f4", "(1,)", &[0; 4]).len() {
            row(&npy("<f4", "(1,)", &[0; 4])[..cut], &Place::default()).unwrap_err();
        }
    }
}
