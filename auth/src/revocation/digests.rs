//! Digests of revocations, by which two nodes find out in what they differ without sending each other everything.
//!
//! Each revocation belongs to one of [`BUCKETS`] buckets, by a hash of whom and what it touches. The digest of a bucket is
//! the sum of the hashes of its revocations, so it changes with each of them in constant time.

use sha2::{Digest, Sha256};
use tidings_model::Timestamp;

use super::{Key, Subject};

/// Number of buckets. Their digests fit into one message of every bus.
pub(crate) const BUCKETS: usize = 256;

/// The digest of each bucket. It is the same on every node that has the same revocations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Digests(Box<[u64; BUCKETS]>);

impl Default for Digests {
    fn default() -> Self {
        Self(Box::new([0; BUCKETS]))
    }
}

impl Digests {
    pub(crate) fn new(digests: Box<[u64; BUCKETS]>) -> Self {
        Self(digests)
    }

    pub(crate) fn as_array(&self) -> &[u64; BUCKETS] {
        &self.0
    }

    pub(super) fn add(&mut self, key: &Key, at: Timestamp) {
        let place = Place::of(key);
        let digest = &mut self.0[place.bucket];
        *digest = digest.wrapping_add(place.hash_at(at));
    }

    pub(super) fn remove(&mut self, key: &Key, at: Timestamp) {
        let place = Place::of(key);
        let digest = &mut self.0[place.bucket];
        *digest = digest.wrapping_sub(place.hash_at(at));
    }

    /// The buckets that are not the same in both.
    pub(crate) fn differing(&self, other: &Self) -> BucketSet {
        let mut differing = BucketSet::default();
        for (bucket, (one, two)) in self.0.iter().zip(other.0.iter()).enumerate() {
            if one != two {
                differing.insert(bucket);
            }
        }
        differing
    }
}

/// A set of buckets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct BucketSet([u64; BUCKETS / 64]);

impl BucketSet {
    fn insert(&mut self, bucket: usize) {
        self.0[bucket / 64] |= 1 << (bucket % 64);
    }

    pub(crate) fn insert_all(&mut self, others: Self) {
        for (own, other) in self.0.iter_mut().zip(others.0) {
            *own |= other;
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|bits| *bits == 0)
    }

    /// Whether a revocation belongs to one of the buckets.
    pub(crate) fn has(&self, key: &Key) -> bool {
        let bucket = Place::of(key).bucket;
        self.0[bucket / 64] & (1 << (bucket % 64)) != 0
    }
}

/// Where a revocation belongs.
struct Place {
    bucket: usize,
    hash: u64,
}

impl Place {
    fn of((project, subject, topic): &Key) -> Self {
        let (kind, id) = match subject {
            Subject::User(id) => (b'u', id),
            Subject::Token(id) => (b't', id),
        };
        let mut digest = Sha256::new();
        // Lengths come first, so that no other texts give the same bytes.
        digest.update([kind, u8::from(topic.is_some())]);
        for text in [project.as_str(), id, topic.as_ref().map_or("", |topic| topic.as_str())] {
            digest.update((text.len() as u64).to_be_bytes());
            digest.update(text);
        }
        let bytes = digest.finalize();
        let hash = bytes[8..16].try_into().map(u64::from_be_bytes).expect("eight bytes");
        Self { bucket: usize::from(bytes[0]), hash }
    }

    /// A hash of the revocation with its moment, whose bits all depend on both (the finalizer of SplitMix64).
    fn hash_at(&self, at: Timestamp) -> u64 {
        let mut mixed = self.hash ^ at.as_millis().wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
