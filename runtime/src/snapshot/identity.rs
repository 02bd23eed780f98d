//! What decides the bytes of a KV page besides its tokens: pages may move only between executors that agree
//! in all of it.
//!
//! Keys and values are the results of a computation. Another model, kernel, driver or precision gives other
//! bits for the same tokens, and a continuation of foreign KV would not be what this executor would have
//! computed; so anything but equality is refused.

use crate::model::{Model, RopeSettings, RopeStyle};
use std::fmt;
use std::hash::Hasher;
use twox_hash::{XxHash3_64, xxhash3_128};

/// 128 bits that stand for some bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest(pub u128);

impl fmt::Display for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:032x}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl Digest {
    /// The digest of some parts, of which the borders count too.
    pub fn of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut hasher = xxhash3_128::Hasher::new();
        for part in parts {
            hasher.write(&(part.len() as u64).to_le_bytes());
            hasher.write(part);
        }
        Self(hasher.finish_128())
    }

    /// The digest of a model: of the whole content of its file, all parts. Metadata and sizes alone would
    /// not do: a fine-tuned model often differs from its base in nothing else than its weights.
    pub fn of_model(model: &Model) -> Self {
        Self::of(model.file().contents())
    }

    /// The digest of all layers' rotations.
    pub fn of_ropes<'a>(ropes: impl IntoIterator<Item = &'a RopeSettings>) -> Self {
        let mut bytes = Vec::new();
        for rope in ropes {
            bytes.push(match rope.style {
                RopeStyle::Interleaved => 0,
                RopeStyle::Split => 1,
            });
            bytes.extend((rope.dims as u64).to_le_bytes());
            bytes.extend(rope.magnitude.to_bits().to_le_bytes());
            bytes.extend((rope.inverse_frequencies.len() as u64).to_le_bytes());
            bytes.extend(rope.inverse_frequencies.iter().flat_map(|value| value.to_bits().to_le_bytes()));
        }
        Self::of([&bytes[..]])
    }
}

/// The checksum of some bytes, which tells damage, not forgery.
pub(super) fn checksum(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// The chained hash of a page's tokens after the hash of all pages before it.
pub(super) fn chained(before: u64, tokens: &[crate::ids::TokenId]) -> u64 {
    let mut hasher = XxHash3_64::with_seed(before);
    tokens.iter().for_each(|token| hasher.write(&token.0.to_le_bytes()));
    hasher.finish()
}

/// Everything that decides the bytes of a page besides its tokens.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SnapshotIdentity {
    /// The model's digest; see [`Digest::of_model`].
    pub model: Digest,
    /// The model's architecture.
    pub architecture: String,
    /// The kernel pack's name.
    pub pack: String,
    /// The pack's version.
    pub pack_version: u64,
    /// The device's name, its driver and the driver's version.
    pub driver: String,
    /// The element type of the KV cache.
    pub kv_type: String,
    /// How exact activations are.
    pub precision: String,
    /// The digest of the rotations; see [`Digest::of_ropes`].
    pub rope: Digest,
    /// Tokens of one page.
    pub page_tokens: u32,
    /// Bytes of one exported page.
    pub page_bytes: u64,
}

/// One field of a [`SnapshotIdentity`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IdentityField {
    /// The model's digest.
    Model,
    /// The architecture.
    Architecture,
    /// The kernel pack.
    Pack,
    /// The pack's version.
    PackVersion,
    /// The device and driver.
    Driver,
    /// The KV cache's element type.
    KvType,
    /// The activations' precision.
    Precision,
    /// The rotations.
    Rope,
    /// Tokens of a page.
    PageTokens,
    /// Bytes of a page.
    PageBytes,
}

impl fmt::Display for IdentityField {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Model => "model",
            Self::Architecture => "architecture",
            Self::Pack => "kernel pack",
            Self::PackVersion => "kernel pack's version",
            Self::Driver => "device and driver",
            Self::KvType => "KV type",
            Self::Precision => "activations' precision",
            Self::Rope => "RoPE settings",
            Self::PageTokens => "tokens of a page",
            Self::PageBytes => "bytes of a page",
        })
    }
}

/// An image was made by an executor that computes otherwise; its tokens are good, its KV is not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the snapshot does not fit: its {field} is {theirs}, and here it is {ours}")]
pub struct Incompatible {
    /// The first field that differs.
    pub field: IdentityField,
    /// Its value here.
    pub ours: String,
    /// Its value in the image.
    pub theirs: String,
}

impl SnapshotIdentity {
    /// Whether pages of an executor of identity `theirs` are good for one of this identity.
    ///
    /// # Errors
    /// The first field that differs, with both values.
    pub fn check(&self, theirs: &Self) -> Result<(), Incompatible> {
        let differing = self.fields().into_iter().zip(theirs.fields()).find(|(ours, theirs)| ours != theirs);
        match differing {
            None => Ok(()),
            Some(((field, ours), (_, theirs))) => Err(Incompatible { field, ours, theirs }),
        }
    }

    /// A digest of all fields, to tell images of different executors apart at a glance.
    pub fn digest(&self) -> Digest {
        let fields = self.fields();
        Digest::of(fields.iter().map(|(_, value)| value.as_bytes()))
    }

    fn fields(&self) -> [(IdentityField, String); 10] {
        [
            (IdentityField::Model, self.model.to_string()),
            (IdentityField::Architecture, self.architecture.clone()),
            (IdentityField::Pack, self.pack.clone()),
            (IdentityField::PackVersion, format!("{:016x}", self.pack_version)),
            (IdentityField::Driver, self.driver.clone()),
            (IdentityField::KvType, self.kv_type.clone()),
            (IdentityField::Precision, self.precision.clone()),
            (IdentityField::Rope, self.rope.to_string()),
            (IdentityField::PageTokens, self.page_tokens.to_string()),
            (IdentityField::PageBytes, self.page_bytes.to_string()),
        ]
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// The identity of some executor with pages of four tokens.
    pub(crate) fn identity() -> SnapshotIdentity {
        SnapshotIdentity {
            model: Digest(7),
            architecture: "llama".to_owned(),
            pack: "cpu".to_owned(),
            pack_version: 1,
            driver: "a device, a driver 1.0".to_owned(),
            kv_type: "f16".to_owned(),
            precision: "default".to_owned(),
            rope: Digest(3),
            page_tokens: 4,
            page_bytes: 24,
        }
    }

    fn check(change: impl FnOnce(&mut SnapshotIdentity), field: IdentityField) {
        let ours = identity();
        let mut theirs = ours.clone();
        change(&mut theirs);
        let error = ours.check(&theirs).expect_err("they differ");
        assert_eq!(error.field, field);
        assert_ne!(error.ours, error.theirs);
        assert_ne!(ours.digest(), theirs.digest());
    }

    #[test]
    fn every_field_that_differs_is_named_with_both_values() {
        assert_eq!(identity().check(&identity()), Ok(()));
        check(|other| other.model = Digest(8), IdentityField::Model);
        check(|other| other.architecture = "qwen2".to_owned(), IdentityField::Architecture);
        check(|other| other.pack = "subgroup".to_owned(), IdentityField::Pack);
        check(|other| other.pack_version = 2, IdentityField::PackVersion);
        check(|other| other.driver = "a device, a driver 1.1".to_owned(), IdentityField::Driver);
        check(|other| other.kv_type = "f32".to_owned(), IdentityField::KvType);
        check(|other| other.precision = "precise".to_owned(), IdentityField::Precision);
        check(|other| other.rope = Digest(4), IdentityField::Rope);
        check(|other| other.page_tokens = 8, IdentityField::PageTokens);
        check(|other| other.page_bytes = 48, IdentityField::PageBytes);
    }

    #[test]
    fn each_rotation_setting_changes_the_digest() {
        let rope = RopeSettings {
            style: RopeStyle::Split,
            dims: 4,
            inverse_frequencies: vec![1.0, 0.5],
            magnitude: 1.0,
        };
        let changed = [
            RopeSettings { style: RopeStyle::Interleaved, ..rope.clone() },
            RopeSettings { dims: 2, ..rope.clone() },
            RopeSettings { inverse_frequencies: vec![1.0, 0.25], ..rope.clone() },
            RopeSettings { magnitude: 1.5, ..rope.clone() },
        ];
        for changed in &changed {
            assert_ne!(Digest::of_ropes([&rope]), Digest::of_ropes([changed]));
        }
        assert_ne!(Digest::of_ropes([&rope]), Digest::of_ropes([&rope, &rope]));
    }
}
