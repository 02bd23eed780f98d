//! Tests of the format: every cut, every flipped byte and every senseless field is refused by name.

use super::super::identity::tests::identity;
use super::super::image::Image;
use super::*;

fn bytes() -> Vec<u8> {
    let tokens: Vec<TokenId> = (0..7).map(TokenId).collect();
    let image = Image::new(identity(), tokens, (0..48).collect()).expect("two pages hold seven tokens");
    image.to_bytes()
}

fn read(bytes: &[u8]) -> Result<Image, FormatError> {
    Image::from_bytes(bytes)
}

/// Preamble and pages around a header that was changed after it was encoded.
fn with_header(change: impl FnOnce(&mut EncodedHeader)) -> Vec<u8> {
    let bytes = bytes();
    let header = &bytes[PREAMBLE_BYTES..bytes.len() - 48];
    let decoded = bincode::serde::decode_from_slice::<EncodedHeader, _>(header, configuration());
    let mut encoded = decoded.expect("it was encoded so").0;
    change(&mut encoded);
    let header = bincode::serde::encode_to_vec(&encoded, configuration()).expect("it is plain data");
    let mut changed = bytes[..12].to_vec();
    changed.extend((header.len() as u32).to_le_bytes());
    changed.extend(checksum(&header).to_le_bytes());
    changed.extend(header);
    changed.extend(&bytes[bytes.len() - 48..]);
    changed
}

fn check_field(change: impl FnOnce(&mut EncodedHeader), expected: &str) {
    match read(&with_header(change)) {
        Err(FormatError::Field { field, .. }) => assert_eq!(field, expected),
        other => panic!("{other:?} where the field {expected} is wrong"),
    }
}

#[test]
fn what_was_written_is_read_again() {
    let image = read(&bytes()).expect("it is whole");
    assert_eq!(image.tokens().len(), 7);
    assert_eq!(image.payload(), (0..48).collect::<Vec<u8>>());
    assert_eq!(image.identity(), &identity());
    assert_eq!(read(&with_header(|_| {})).expect("nothing was changed").tokens(), image.tokens());
}

#[test]
fn a_file_cut_anywhere_is_refused() {
    let bytes = bytes();
    for length in 0..bytes.len() {
        match read(&bytes[..length]) {
            Err(FormatError::Cut { needed, there, .. }) => assert!(there < needed, "cut at {length}"),
            other => panic!("{other:?} for a file cut at {length}"),
        }
    }
}

#[test]
fn a_flipped_bit_anywhere_is_refused() {
    let whole = bytes();
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        assert!(read(&damaged).is_err(), "byte {at} was flipped");
    }
}

#[test]
fn damage_is_named() {
    let whole = bytes();
    let damaged = |at: usize| {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        read(&bytes).expect_err("it is damaged")
    };
    assert_eq!(damaged(0), FormatError::NotASnapshot);
    assert_eq!(damaged(8), FormatError::Version { found: FORMAT_VERSION ^ 1 });
    assert_eq!(damaged(PREAMBLE_BYTES), FormatError::Checksum { field: PartName::Header });
    assert_eq!(damaged(whole.len() - 48), FormatError::Checksum { field: PartName::Page(0) });
    assert_eq!(damaged(whole.len() - 1), FormatError::Checksum { field: PartName::Page(1) });
    let mut long = whole.clone();
    long.push(0);
    let (expected, found) = (whole.len() as u64, whole.len() as u64 + 1);
    assert_eq!(read(&long), Err(FormatError::TooLong { expected, found }));
}

#[test]
fn senseless_fields_are_refused_by_name_though_their_checksum_is_right() {
    check_field(|header| header.tokens.clear(), "number of tokens");
    check_field(|header| header.page_tokens = 0, "tokens of a page");
    check_field(|header| header.page_bytes = 0, "bytes of a page");
    check_field(|header| header.page_bytes = u64::MAX, "bytes of a page");
    check_field(|header| header.page_checksums.push(1), "number of checksums");
    check_field(|header| header.tokens.extend([1, 2]), "number of checksums");
    let longer = read(&with_header(|header| header.page_bytes = 25));
    assert!(matches!(longer, Err(FormatError::Cut { field: "pages", .. })), "{longer:?}");
}

#[test]
fn a_header_that_promises_more_than_there_is_allocates_nothing() {
    let mut bytes = bytes();
    bytes[12..16].copy_from_slice(&u32::MAX.to_le_bytes());
    assert!(matches!(read(&bytes), Err(FormatError::Field { field: "header length", .. })));
    // A list of 2^63 tokens, in a header that is otherwise cut off there.
    let header = [&[0; 1][..], &[0; 6], &[253], &(1_u64 << 63).to_le_bytes()].concat();
    let mut bytes = bytes[..12].to_vec();
    bytes.extend((header.len() as u32).to_le_bytes());
    bytes.extend(checksum(&header).to_le_bytes());
    bytes.extend(header);
    assert!(matches!(read(&bytes), Err(FormatError::Undecodable(_))));
}

proptest::proptest! {
    #[test]
    fn no_bytes_make_the_reader_panic(bytes in proptest::collection::vec(0_u8.., 0..300)) {
        let _ = read(&bytes);
        let _ = read(&[&super::MAGIC[..], &FORMAT_VERSION.to_le_bytes(), &bytes].concat());
        // With a right checksum, so that the decoder sees them.
        let mut signed = super::MAGIC.to_vec();
        signed.extend(FORMAT_VERSION.to_le_bytes());
        signed.extend((bytes.len() as u32).to_le_bytes());
        signed.extend(checksum(&bytes).to_le_bytes());
        signed.extend(&bytes);
        let _ = read(&signed);
    }
}
