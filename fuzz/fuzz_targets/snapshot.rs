//! Any bytes read as a snapshot: an image or an error, never a panic or an allocation beyond the file's size. What
//! is read as an image is written as one that reads the same.

#![no_main]

use lavalane_runtime::snapshot::Image;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(image) = Image::from_bytes(bytes) {
        assert_eq!(Image::from_bytes(&image.to_bytes()).as_ref(), Ok(&image));
    }
});
