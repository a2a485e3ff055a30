//! The Merkle root of a list of record ids, in the form of RFC 6962: leaves and inner nodes hash under different prefixes, so a
//! node can never pass for a leaf, and an inclusion proof needs only a logarithmic number of digests.

use crit_core::digest::Digest;

/// The root over `ids` in their order. The root of no ids is the digest of nothing.
pub fn root(ids: &[Digest]) -> Digest {
    match ids {
        [] => Digest::of(b""),
        [id] => leaf(id),
        _ => {
            // The largest power of two below the count, as the RFC splits.
            let split = 1usize << (usize::BITS - 1 - (ids.len() - 1).leading_zeros());
            node(&root(&ids[..split]), &root(&ids[split..]))
        }
    }
}

fn leaf(id: &Digest) -> Digest {
    Digest::of(&[&[0u8][..], id.bytes()].concat())
}

fn node(left: &Digest, right: &Digest) -> Digest {
    Digest::of(&[&[1u8][..], left.bytes(), right.bytes()].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shape_follows_the_rfc() {
        let ids: Vec<Digest> = (0u8..5).map(|i| Digest::of(&[i])).collect();
        assert_eq!(root(&[]).to_string(), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
        let l: Vec<Digest> = ids.iter().map(leaf).collect();
        let four = node(&node(&l[0], &l[1]), &node(&l[2], &l[3]));
        assert_eq!(root(&ids[..3]), node(&node(&l[0], &l[1]), &l[2]));
        assert_eq!(root(&ids), node(&four, &l[4]));
        assert_ne!(root(&ids[..2]), root(&[ids[1], ids[0]]));
    }
}
