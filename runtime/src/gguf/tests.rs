//! Tests of the reader: what a good file gives, and the exact complaint about each kind of bad one.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::*;

/// A file under construction: the bytes are written by hand, so that every one can be wrong.
struct Bytes(Vec<u8>);

impl Bytes {
    fn header(version: u32, tensors: u64, pairs: u64) -> Self {
        Self(b"GGUF".to_vec()).u32(version).u64(tensors).u64(pairs)
    }

    fn u32(mut self, value: u32) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn u64(mut self, value: u64) -> Self {
        self.0.extend(value.to_le_bytes());
        self
    }

    fn string(self, text: &str) -> Self {
        let mut bytes = self.u64(text.len() as u64);
        bytes.0.extend(text.as_bytes());
        bytes
    }

    /// A metadata pair of a 32-bit number.
    fn pair(self, key: &str, value: u32) -> Self {
        self.string(key).u32(ValueType::U32.number()).u32(value)
    }

    fn tensor(self, name: &str, dimensions: &[u64], tensor_type: u32, offset: u64) -> Self {
        let bytes = self.string(name).u32(dimensions.len() as u32);
        dimensions.iter().fold(bytes, |bytes, extent| bytes.u64(*extent)).u32(tensor_type).u64(offset)
    }

    /// Fills up to the alignment, then appends the data.
    fn data(mut self, data: &[u8]) -> Self {
        self.0.resize(self.0.len().next_multiple_of(32), 0);
        self.0.extend(data);
        self
    }
}

/// A folder that is removed with its files.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let folder = std::env::temp_dir().join(format!("lavalane-gguf-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn sample() -> Bytes {
    let data: Vec<u8> =
        [1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|value| value.to_le_bytes()).collect();
    Bytes::header(3, 1, 2)
        .pair("sample.layers", 7)
        .string("sample.names")
        .u32(ValueType::Array.number())
        .u32(ValueType::String.number())
        .u64(2)
        .string("a")
        .string("")
        .tensor("weight", &[3, 2], 0, 0)
        .data(&data)
}

/// Opens the bytes as a file, quickly, and holds the complaint (after the file's name) to `expected`.
#[track_caller]
fn check(name: &str, bytes: &[u8], expected: &str) {
    let folder = Folder::new(name);
    let path = folder.write("bad.gguf", bytes);
    let started = Instant::now();
    let error = GgufFile::open(&path).err().expect("the file is bad").to_string();
    assert!(started.elapsed() < Duration::from_secs(1), "{name}: slow");
    assert_eq!(error, format!("{}: {expected}", path.display()));
}

#[test]
fn a_good_file_gives_its_metadata_and_tensors() {
    for version in [2_u32, 3] {
        let mut bytes = sample().0;
        bytes[4..8].copy_from_slice(&version.to_le_bytes());
        let folder = Folder::new(&format!("good-{version}"));
        let file = GgufFile::open(folder.write("good.gguf", &bytes)).unwrap();
        assert_eq!(file.version(), version);
        assert_eq!(file.metadata_u32("sample.layers").unwrap(), 7);
        assert_eq!(file.metadata::<&[String]>("sample.names").unwrap(), ["a", ""]);
        assert_eq!(file.metadata_optional::<f32>("sample.nothing").unwrap(), None);
        let tensor = file.tensor("weight").unwrap();
        assert_eq!(tensor.dimensions(), [3, 2]);
        assert_eq!((tensor.row_elements(), tensor.rows(), tensor.bytes()), (3, 2, 24));
        assert_eq!(file.data(tensor)[20..], 6.0_f32.to_le_bytes());
    }
}

#[test]
fn a_missing_key_and_a_value_of_another_type_are_named() {
    let folder = Folder::new("keys");
    let path = folder.write("good.gguf", &sample().0);
    let file = GgufFile::open(&path).unwrap();
    let missing = file.metadata_u32("sample.heads").unwrap_err().to_string();
    assert_eq!(missing, format!("{}: the metadata has no key sample.heads", path.display()));
    let wrong = file.metadata_str("sample.layers").unwrap_err().to_string();
    let expected = "metadata sample.layers at byte 49 is the U32 7, expected a string";
    assert_eq!(wrong, format!("{}: {expected}", path.display()));
}

#[test]
fn a_file_cut_anywhere_is_an_error_and_never_a_panic() {
    let bytes = sample().0;
    let folder = Folder::new("cut");
    for length in 0..bytes.len() {
        let path = folder.write("cut.gguf", &bytes[..length]);
        let error = GgufFile::open(&path).err().unwrap_or_else(|| panic!("{length} bytes were read"));
        assert!(matches!(error, GgufError::Field { .. }), "{length} bytes: {error}");
    }
}

#[test]
fn an_empty_file_is_truncated() {
    check("empty", &[], "magic at byte 0: needs 4 bytes, but the file ends after 0 more");
}

#[test]
fn wrong_magic_version_and_byte_order_are_told_apart() {
    let expected = "magic at byte 0: found [50, 4b, 03, 04], expected \"GGUF\": this is not a GGUF file";
    check("magic", b"PK\x03\x04 is a zip file", expected);
    let expected = "version at byte 4: version 1 is not supported, only 2 and 3 are";
    check("version", &Bytes::header(1, 0, 0).0, expected);
    let expected = "version at byte 4: the file is big-endian; only little-endian files are supported";
    check("endian", &Bytes::header(3_u32.swap_bytes(), 0, 0).0, expected);
}

#[test]
fn lengths_beyond_the_file_are_refused_before_allocation() {
    const HUGE: u64 = (1 << 48) - 1;
    let expected = "metadata key 0 at byte 24: 281474976710655 is above the limit of 65535";
    check("key-length", &Bytes::header(3, 0, 1).u64(HUGE).u64(0).u64(0).0, expected);
    let bytes = Bytes::header(3, 0, 1).string("k").u32(ValueType::String.number()).u64(HUGE).0;
    let expected = "metadata k at byte 45: needs 281474976710655 bytes, but the file ends after 0 more";
    check("string-length", &bytes, expected);
    let bytes = Bytes::header(3, 0, 1).string("k").u32(ValueType::Array.number()).u32(4).u64(HUGE).0;
    let expected = "metadata k at byte 41: needs 1125899906842620 bytes, but the file ends after 0 more";
    check("array-length", &bytes, expected);
    let expected = "tensor count at byte 8: needs 9288674231451615 bytes, but the file ends after 8 more";
    check("tensor-count", &Bytes::header(3, HUGE, 0).0, expected);
    let expected = "metadata count at byte 16: needs 3940649673949170 bytes, but the file ends after 0 more";
    check("pair-count", &Bytes::header(3, 0, HUGE).0, expected);
}

#[test]
fn bad_keys_and_values_are_named_with_their_offset() {
    let expected = "metadata key 0 at byte 24: is empty";
    check("empty-key", &Bytes::header(3, 0, 1).pair("", 1).u64(0).0, expected);
    let expected = "metadata k at byte 41: k occurs twice";
    check("duplicate-key", &Bytes::header(3, 0, 2).pair("k", 1).pair("k", 2).0, expected);
    let expected = "metadata k at byte 33: value type 13 is unknown";
    check("value-type", &Bytes::header(3, 0, 1).string("k").u32(13).u32(0).0, expected);
    let mut bytes = Bytes::header(3, 0, 1).string("k").u32(ValueType::Bool.number()).0;
    bytes.push(2);
    check("bool", &bytes, "metadata k at byte 37: 2 is no truth value");
    let mut bytes = Bytes::header(3, 0, 1).string("key").u32(ValueType::U32.number()).u32(0).0;
    bytes[34] = 0xff;
    check("utf8", &bytes, "metadata key 0 at byte 24: is not UTF-8 from its byte 2 on");
    let expected = "metadata general.alignment at byte 53: 24 is no power of two";
    check("alignment", &Bytes::header(3, 0, 1).pair("general.alignment", 24).0, expected);
    let nested = (0..5).fold(Bytes::header(3, 0, 1).string("k").u32(9), |bytes, _| bytes.u32(9).u64(1));
    let expected = "metadata k at byte 85: arrays nested more than 4 deep are not supported";
    check("nested", &nested.u32(9).u64(0).u64(0).0, expected);
}

#[test]
fn bad_tensor_entries_are_named_with_their_offset() {
    let entry = |dimensions: &[u64], tensor_type, offset| {
        Bytes::header(3, 1, 0).tensor("w", dimensions, tensor_type, offset).data(&[0; 64]).0
    };
    let expected = "type of tensor w at byte 45: tensor type 16 (IQ2_XXS) is not supported";
    check("type", &entry(&[256], 16, 0), expected);
    let expected = "type of tensor w at byte 45: tensor type 1000 (unknown) is not supported";
    check("type-unknown", &entry(&[256], 1000, 0), expected);
    let expected = "dimension 1 of tensor w at byte 45: is zero";
    check("zero", &entry(&[256, 0], 0, 0), expected);
    let expected = "dimension count of tensor w at byte 33: 5 dimensions, expected 1 to 4";
    check("dimensions", &entry(&[1, 1, 1, 1, 1], 0, 0), expected);
    let expected =
        "offset of tensor w at byte 49: data of 16 bytes at 4160 lies outside the file of 128 bytes";
    check("offset", &entry(&[4], 0, 4096), expected);
    let expected = "offset of tensor w at byte 49: data of 16 bytes at 18446744073709551615 lies outside the file of 128 bytes";
    check("offset-overflow", &entry(&[4], 0, u64::MAX - 31), expected);
    let expected = "offset of tensor w at byte 49: 4 is no multiple of the alignment 32";
    check("unaligned", &entry(&[4], 0, 4), expected);
    let expected = "dimensions of tensor w at byte 37: a row of 31 weights is no whole number of Q8_0 blocks";
    check("block", &entry(&[31], 8, 0), expected);
    let expected =
        "dimensions of tensor w at byte 37: [4294967296, 4294967296, 4294967296] elements of F32 overflow";
    check("overflow", &entry(&[1 << 32, 1 << 32, 1 << 32], 0, 0), expected);
}

fn split_part(number: u32, count: u32, tensors: u32) -> Vec<u8> {
    Bytes::header(3, 1, 3)
        .pair("split.no", number)
        .pair("split.count", count)
        .pair("split.tensors.count", tensors)
        .tensor(&format!("part{number}"), &[2], 0, 0)
        .data(&[number as u8; 8])
        .0
}

#[test]
fn a_split_model_is_one_file_and_its_parts_are_checked() {
    let folder = Folder::new("split");
    let first = folder.write("m-00001-of-00002.gguf", &split_part(0, 2, 2));
    let error = GgufFile::open(&first).err().expect("the second part is missing");
    assert!(matches!(error, GgufError::Io { ref file, .. } if file.ends_with("m-00002-of-00002.gguf")));
    let second = folder.write("m-00002-of-00002.gguf", &split_part(1, 2, 2));
    let file = GgufFile::open(&first).unwrap();
    assert_eq!(file.tensors().len(), 2);
    assert_eq!(file.data(file.tensor("part1").unwrap()), [1; 8]);
    file.release_pages();
    assert_eq!(file.data(file.tensor("part1").unwrap()), [1; 8]);
    let error = GgufFile::open(&second).err().expect("it is no first part").to_string();
    assert!(error.ends_with("this is part 2 of a split model; open its first part"), "{error}");
    folder.write("m-00002-of-00002.gguf", &split_part(0, 2, 2));
    let error = GgufFile::open(&first).err().expect("the second part is wrong").to_string();
    assert!(error.ends_with("split.no and split.count say part 1 of 2, expected part 2 of 2"), "{error}");
    folder.write("m-00002-of-00002.gguf", &split_part(1, 2, 2));
    let first = folder.write("m-00001-of-00002.gguf", &split_part(0, 2, 3));
    let error = GgufFile::open(&first).err().expect("a tensor is missing").to_string();
    assert!(error.ends_with("the parts hold 2 tensors, split.tensors.count says 3"), "{error}");
}
