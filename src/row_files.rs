//! Rows of logits in files: as numpy arrays, bare binary numbers, or numbers as text.

use crate::files;
use crate::output::counted;
use crate::params::MAX_VOCAB_SIZE;
use crate::sampling::logits::{Dtype, Logits};

/// Largest file that is read.
const LARGEST: u64 = 1 << 30;
/// Most bytes of a file of numbers as text; every row fits.
const LARGEST_TEXT: usize = 64 << 20;
/// How many characters of a file an error message repeats.
const SHOWN: usize = 32;
const NPY: &[u8] = b"\x93NUMPY";
const ZIP: &[u8] = b"PK\x03\x04";

/// A file of rows, and what the file itself does not say.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RowFile {
    /// The path; `None` means standard input.
    pub path: Option<std::path::PathBuf>,
    /// The format of bare binary numbers, or of an array that does not name its format.
    pub dtype: Option<Dtype>,
    /// Logits in a row; `None` means the last dimension of an array, the length of a text's lists or lines, or all logits
    /// of the file.
    pub vocab_size: Option<usize>,
    /// What stands before `dtype` in the flag that gives the format: `sent-` or `plain-` where there are two files.
    pub flag_prefix: &'static str,
}

/// All rows of a file. There is at least one, and each has at least one logit.
#[derive(Debug, Clone, PartialEq)]
pub struct Rows {
    /// The number format of the rows.
    pub dtype: Dtype,
    /// Number of logits in a row.
    pub vocab_size: usize,
    /// The numbers of the rows, little endian, one row after the other.
    bytes: Vec<u8>,
}

/// The numbers of a file.
struct Numbers<'a> {
    dtype: Dtype,
    bytes: std::borrow::Cow<'a, [u8]>,
    /// Numbers in a row, if the file says so.
    width: Option<usize>,
}

impl RowFile {
    /// The file's name in messages.
    #[must_use]
    pub fn name(&self) -> String {
        self.path.as_ref().map_or_else(|| "standard input".into(), |path| path.display().to_string())
    }

    /// Reads the rows of the file.
    ///
    /// # Errors
    /// What is wrong, in words, after the file's [name](Self::name).
    pub fn read(&self) -> Result<Rows, String> {
        let bytes = match &self.path {
            Some(path) => files::read(path, LARGEST),
            None => files::at_most(files::standard_input(), LARGEST),
        };
        bytes.and_then(|bytes| self.rows(&bytes)).map_err(|problem| format!("{}: {problem}", self.name()))
    }

    /// The flag that gives the format.
    fn flag(&self) -> String {
        format!("--{}dtype", self.flag_prefix)
    }

    /// The rows in the bytes of a file.
    fn rows(&self, bytes: &[u8]) -> Result<Rows, String> {
        let numbers = self.numbers(bytes)?;
        let size = numbers.dtype.size();
        let count = numbers.bytes.len() / size;
        if !numbers.bytes.len().is_multiple_of(size) {
            return Err(format!(
                "has {}, which is not a whole number of {} values",
                counted(numbers.bytes.len() as u64, "byte"),
                numbers.dtype.name()
            ));
        }
        let width = match (numbers.width, self.vocab_size) {
            (Some(own), Some(asked)) if own != asked => {
                let own = counted(own as u64, "logit");
                return Err(format!("is an array with rows of {own}, but --vocab-size is {asked}"));
            }
            (own, asked) => asked.or(own).unwrap_or(count),
        };
        if count == 0 || width == 0 {
            return Err("has no logits".to_owned());
        }
        // Sums of masses are exact up to this size, as on the wire.
        if width > MAX_VOCAB_SIZE as usize {
            return Err(format!(
                "has {width} logits in a row, at most {MAX_VOCAB_SIZE} are allowed; give the length of a row with --vocab-size"
            ));
        }
        if !count.is_multiple_of(width) {
            let logits = counted(count as u64, "logit");
            return Err(format!("has {logits}, which is not a whole number of rows of {width}"));
        }
        Ok(Rows { dtype: numbers.dtype, vocab_size: width, bytes: numbers.bytes.into_owned() })
    }

    fn numbers<'a>(&self, bytes: &'a [u8]) -> Result<Numbers<'a>, String> {
        let in_writing = |byte: u8| between(byte.into()) || b"+-.0123456789e".contains(&byte);
        match self.dtype {
            _ if bytes.starts_with(NPY) => array(bytes, self),
            _ if bytes.starts_with(ZIP) => {
                Err("is a zip archive, as torch.save and numpy.savez write; save the row alone with numpy.save"
                    .to_owned())
            }
            Some(_) if !bytes.is_empty() && bytes.iter().all(|&byte| in_writing(byte)) => {
                Err(format!("contains numbers as text; leave {} out, it is for bare binary numbers", self.flag()))
            }
            Some(dtype) => Ok(Numbers { dtype, bytes: bytes.into(), width: None }),
            None => written(bytes, self),
        }
    }
}

impl Rows {
    /// How many rows there are.
    #[must_use]
    pub fn count(&self) -> usize {
        self.bytes.len() / self.row_bytes()
    }

    /// The row with this index, counted from 0.
    #[must_use]
    pub fn get(&self, row: usize) -> Option<Logits<'_>> {
        let bytes = self.bytes.chunks_exact(self.row_bytes()).nth(row)?;
        Some(Logits::new(self.dtype, bytes))
    }

    fn row_bytes(&self) -> usize {
        self.vocab_size * self.dtype.size()
    }
}

/// A piece of a file as an error message repeats it.
fn shown(piece: &str) -> String {
    piece.chars().filter(|c| !c.is_control()).take(SHOWN).collect()
}

/// Whether `c` separates numbers in a text.
fn between(c: char) -> bool {
    c.is_whitespace() || matches!(c, ',' | '[' | ']')
}

/// Reads numbers from a text.
fn written<'a>(bytes: &'a [u8], file: &RowFile) -> Result<Numbers<'a>, String> {
    let flag = file.flag();
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Err(format!(
            "is neither a numpy array nor text; for bare binary numbers give their format, such as {flag} f32"
        ));
    };
    if bytes.len() > LARGEST_TEXT {
        return Err(format!(
            "has more than {LARGEST_TEXT} bytes of text; give the row alone, or bare binary numbers with {flag}"
        ));
    }
    let mut numbers = Vec::new();
    for word in words(text) {
        let number: f32 =
            word.parse().map_err(|_| format!("logit {}: \"{}\" is not a number", numbers.len(), shown(word)))?;
        numbers.push(number);
    }
    let width = if file.vocab_size.is_none() { width(text)? } else { None };
    Ok(Numbers { dtype: Dtype::F32, bytes: Dtype::F32.encode(&numbers).into(), width })
}

/// The numbers of a text as they stand there.
fn words(text: &str) -> impl Iterator<Item = &str> {
    text.split(between).filter(|word| !word.is_empty())
}

/// The length of a text's rows, if the text has several: lists in brackets, or else lines of one length. Lines of one
/// number each are one row. Lines of different lengths may be a row that was broken into lines, or rows whose last one
/// is cut off, so they are refused.
fn width(text: &str) -> Result<Option<usize>, String> {
    let has_lists = text.contains(']');
    let rows = text.split(if has_lists { ']' } else { '\n' });
    let counts: Vec<usize> = rows.map(|row| words(row).count()).filter(|&count| count > 0).collect();
    let Some(&first) = counts.first() else { return Ok(None) };
    let lines = counts.len();
    match counts.iter().find(|&&count| count != first) {
        None if first == 1 => Ok(None),
        // One long row whose lines happen to be equal looks like this too.
        None if !has_lists && lines > first => Err(format!(
            "has {lines} lines of {first} numbers each; give --vocab-size {first} if each line is a row, or --vocab-size {} if \
             they are one row",
            lines * first
        )),
        None => Ok(Some(first)),
        Some(other) if has_lists => Err(format!(
            "has lists of different lengths, {first} and {other}; make them alike, or give the length of a row with --vocab-size"
        )),
        Some(other) => Err(format!(
            "has lines of different lengths, {first} and {other}; make them alike, or give --vocab-size {} if they are one row",
            counts.iter().sum::<usize>()
        )),
    }
}

/// Reads an array as `numpy.save` writes it (NEP 1): a magic, a version, the length of the header, the header, the
/// numbers.
fn array<'a>(bytes: &'a [u8], file: &RowFile) -> Result<Numbers<'a>, String> {
    let cut = || "is a truncated numpy array".to_owned();
    let length_bytes = match bytes.get(NPY.len()).ok_or_else(cut)? {
        1 => 2,
        2 | 3 => 4,
        version => return Err(format!("is a numpy array of format version {version}; versions 1 to 3 can be read")),
    };
    let start = NPY.len() + 2;
    let length = bytes.get(start..start + length_bytes).ok_or_else(cut)?;
    let length = length.iter().rev().fold(0usize, |sum, &byte| sum << 8 | usize::from(byte));
    let (header, numbers) = bytes[start + length_bytes..].split_at_checked(length).ok_or_else(cut)?;
    let header = String::from_utf8_lossy(header);
    let dtype = dtype_of(value(&header, "descr").unwrap_or_default(), file)?;
    let dimensions = dimensions(value(&header, "shape").unwrap_or_default())?;
    if dimensions.len() > 1 && value(&header, "fortran_order").is_some_and(|order| order.starts_with("True")) {
        return Err("is an array in Fortran order; save numpy.ascontiguousarray(array) instead".to_owned());
    }
    let count = dimensions.iter().try_fold(1usize, |product, &n| product.checked_mul(n));
    if count.and_then(|count| count.checked_mul(dtype.size())) != Some(numbers.len()) {
        return Err(format!(
            "is an array of {} that has {} of data, which does not match its shape",
            dtype.name(),
            counted(numbers.len() as u64, "byte")
        ));
    }
    // An array of one dimension may have several rows, one after the other.
    let width = dimensions.last().copied().filter(|_| dimensions.len() > 1);
    Ok(Numbers { dtype, bytes: numbers.into(), width })
}

/// The text after a key in a header: `{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }`.
fn value<'a>(header: &'a str, key: &str) -> Option<&'a str> {
    let (_, rest) = header.split_once(&format!("'{key}':"))?;
    Some(rest.trim_start())
}

fn dtype_of(descr: &str, file: &RowFile) -> Result<Dtype, String> {
    let descr = &*shown(descr.split('\'').nth(1).unwrap_or_default());
    match (descr, file.dtype) {
        ("<f4", None | Some(Dtype::F32)) => Ok(Dtype::F32),
        ("<f2", None | Some(Dtype::F16)) => Ok(Dtype::F16),
        // numpy itself has no bfloat16; libraries write it as two raw bytes or as an integer.
        ("|V2" | "<V2" | "<u2" | "<i2", Some(dtype)) if dtype.size() == 2 => Ok(dtype),
        ("|V2" | "<V2" | "<u2" | "<i2", None) => {
            let flag = file.flag();
            Err(format!("is an array of \"{descr}\"; give the format of these two-byte values: {flag} bf16 or f16"))
        }
        ("<f4" | "<f2", Some(dtype)) => {
            Err(format!("is an array of \"{descr}\", which does not match {} {}", file.flag(), dtype.name()))
        }
        _ => Err(format!(
            "is an array of \"{descr}\"; logits must be float32 or float16, little endian: save them with astype('float32')"
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

    fn file(dtype: Option<Dtype>, vocab_size: Option<usize>) -> RowFile {
        RowFile { dtype, vocab_size, ..RowFile::default() }
    }

    #[test]
    fn the_three_forms_are_read() {
        let numbers = Dtype::F32.encode(&[1.0, 2.5, f32::NEG_INFINITY, -3.0]);
        let of = |vocab_size| Rows { dtype: Dtype::F32, vocab_size, bytes: numbers.clone() };
        let text = b"[[1, 2.5],\n [-Infinity -3e0]]";
        let bare = Some(Dtype::F32);
        assert_eq!(RowFile::default().rows(text).unwrap(), of(2));
        assert_eq!(file(None, Some(4)).rows(text).unwrap(), of(4));
        assert_eq!(file(bare, None).rows(&numbers).unwrap(), of(4));
        assert_eq!(file(bare, Some(2)).rows(&numbers).unwrap(), of(2));
        assert_eq!(RowFile::default().rows(&npy("<f4", "(4,)", &numbers)).unwrap(), of(4));
        assert_eq!(RowFile::default().rows(&npy("<f4", "(1, 2, 2)", &numbers)).unwrap(), of(2));
        let half = Rows { dtype: Dtype::Bf16, vocab_size: 1, bytes: vec![0x80, 0x3F] };
        assert_eq!(file(Some(Dtype::Bf16), None).rows(&npy("|V2", "(1,)", &half.bytes)).unwrap(), half);
    }

    #[test]
    fn a_text_may_have_several_rows() {
        let width = |text: &str| file(None, None).rows(text.as_bytes()).map(|rows| rows.vocab_size);
        for text in ["1 2 3\n4 5 6", "1, 2, 3,\r\n\r\n4, 5, 6\r\n", "[1, 2, 3]\n[4, 5, 6]", "[[1 2\n 3]\n [4 5\n 6]]"] {
            assert_eq!(width(text), Ok(3), "{text:?}");
        }
        // One row, as numpy prints it, and as it is wrapped or written down.
        for text in ["[1 2 3\n 4 5 6]", "[1 2 3 4\n 5 6]", "1\n2\n3\n4\n5\n6\n", "1 2 3 4 5 6"] {
            assert_eq!(width(text), Ok(6), "{text:?}");
        }
        for (text, lengths) in [("1 2 3 4\n5 6\n", "4 and 2"), ("1\n2 3 4\n5 6", "1 and 3"), ("1 2 3\n4 5 6\n", "")] {
            let ragged = "; make them alike, or give --vocab-size 6 if they are one row";
            let told = format!("has lines of different lengths, {lengths}{ragged}");
            assert_eq!(width(text), if lengths.is_empty() { Ok(3) } else { Err(told) }, "{text:?}");
            assert_eq!(file(None, Some(6)).rows(text.as_bytes()).unwrap().count(), 1);
        }
        let wrapped = "has 3 lines of 2 numbers each; give --vocab-size 2 if each line is a row, or --vocab-size 6 if they are one row";
        assert_eq!(width("1 2\n3 4\n5 6\n"), Err(wrapped.to_owned()));
        assert_eq!(file(None, Some(6)).rows(b"1 2\n3 4\n5 6\n").unwrap().count(), 1);
        assert!(width("[[1, 2], [3]]").unwrap_err().starts_with("has lists of different lengths, 2 and 1; "));
        assert_eq!(file(None, Some(3)).rows(b"[[1, 2], [3]]").unwrap().count(), 1);
    }

    #[test]
    fn rows_are_counted_from_0() {
        let rows = file(None, Some(2)).rows(b"1 2 3 4").unwrap();
        let widened = |row| rows.get(row).map(|logits| logits.widen());
        assert_eq!((rows.count(), widened(1), widened(2)), (2, Some(vec![3.0, 4.0]), None));
    }

    #[test]
    fn what_is_wrong_is_told() {
        let told = |bytes: &[u8], file: RowFile| file.rows(bytes).unwrap_err();
        assert_eq!(told(b"1, 2, x\n", RowFile::default()), "logit 2: \"x\" is not a number");
        assert_eq!(told(b"[]", RowFile::default()), "has no logits");
        assert_eq!(told(b"1 2 3", file(None, Some(2))), "has 3 logits, which is not a whole number of rows of 2");
        assert!(told(b"\xFF\xFE", RowFile::default()).contains("--dtype"));
        assert!(told(b"\xFF\xFE\x00", file(Some(Dtype::F16), None)).starts_with("has 3 bytes"));
        assert!(told(b"PK\x03\x04...", RowFile::default()).contains("numpy.save"));
        assert!(told(&npy("<f8", "(1,)", &[0; 8]), RowFile::default()).contains("astype"));
        assert!(told(&npy("<V2", "(1,)", &[0; 2]), RowFile::default()).contains("--dtype bf16"));
        assert!(
            told(&npy("<f4", "(1,)", &[0; 4]), file(Some(Dtype::F16), None)).contains("does not match --dtype f16")
        );
        let re_cut = told(&npy("<f4", "(2, 2)", &[0; 16]), file(None, Some(4)));
        assert_eq!(re_cut, "is an array with rows of 2 logits, but --vocab-size is 4");
        assert!(told(&npy("<f4", "(2,)", &[0; 4]), RowFile::default()).contains("has 4 bytes"));
        assert_eq!(told(&npy("<f4", "(4, 0)", &[]), RowFile::default()), "has no logits");
        assert_eq!(told(b"", file(Some(Dtype::F32), None)), "has no logits");
        let plain = RowFile { flag_prefix: "plain-", ..RowFile::default() };
        assert!(told(b"\xFF\xFE", plain.clone()).ends_with("such as --plain-dtype f32"));
        assert!(told(&npy("<V2", "(1,)", &[0; 2]), plain.clone()).ends_with("--plain-dtype bf16 or f16"));
        let named = RowFile { dtype: Some(Dtype::F16), ..plain };
        assert!(told(&npy("<f4", "(1,)", &[0; 4]), named.clone()).ends_with("does not match --plain-dtype f16"));
        assert!(told(b"1 2", named).contains("leave --plain-dtype out"));
        assert!(told(b"1 2 3 4\n", file(Some(Dtype::F32), None)).contains("leave --dtype out"));
        let many = vec![0; 2 * ((1 << 20) + 1)];
        assert!(told(&many, file(Some(Dtype::F16), None)).starts_with("has 1048577 logits in a row, at most 1048576"));
        assert!(!told(&npy("\u{1b}[31mRED", "(1,)", &[0; 4]), RowFile::default()).contains('\u{1b}'));
        assert!(told(&npy("<f4", "()", &[0; 4]), RowFile::default()).contains("without dimensions"));
        assert!(told(&npy("<f4", "(99999999999, 99999999999)", &[0; 4]), RowFile::default()).contains("has 4 bytes"));
        let columns = b"{'descr': '<f4', 'fortran_order': True, 'shape': (1, 1), }";
        let fortran = [NPY, &[1, 0, columns.len() as u8, 0], columns, &[0; 4]].concat();
        assert!(told(&fortran, RowFile::default()).contains("ascontiguousarray"));
        for cut in 0..npy("<f4", "(1,)", &[0; 4]).len() {
            RowFile::default().rows(&npy("<f4", "(1,)", &[0; 4])[..cut]).unwrap_err();
        }
    }
}
