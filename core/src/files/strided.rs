//! Elements that lie in a file in another order than a tensor's: views with strides, matrices stored the other way round.
//!
//! Their bytes are put in order when they are first asked for, and kept from then on: a copy of the tensor's own size.

use super::map::Bytes;
use std::sync::{Arc, OnceLock};

/// A tensor's elements by strides over a file.
#[derive(Debug)]
pub(super) struct Strided {
    file: Arc<Bytes>,
    start: usize,
    /// Bytes of an element.
    size: usize,
    shape: Vec<usize>,
    /// In elements.
    strides: Vec<usize>,
    made: OnceLock<Vec<u8>>,
}

impl Strided {
    /// Elements of `size` bytes from byte `start` of `file` on; none if one of them lies outside.
    pub(super) fn new(file: Arc<Bytes>, start: usize, size: usize, shape: &[usize], strides: &[usize]) -> Option<Self> {
        let mut end = 0usize;
        for (dim, stride) in shape.iter().zip(strides) {
            end = end.checked_add(dim.saturating_sub(1).checked_mul(*stride)?)?;
        }
        let is_empty = shape.contains(&0);
        let bytes = if is_empty { 0 } else { end.checked_add(1)?.checked_mul(size)? };
        let inside = start.checked_add(bytes)? <= file.len();
        let (shape, strides) = (shape.to_vec(), strides.to_vec());
        inside.then_some(Self { file, start, size, shape, strides, made: OnceLock::new() })
    }

    pub(super) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// The same elements with the last two axes swapped.
    pub(super) fn transposed(&self) -> Self {
        let (mut shape, mut strides) = (self.shape.clone(), self.strides.clone());
        let axes = shape.len();
        shape.swap(axes - 2, axes - 1);
        strides.swap(axes - 2, axes - 1);
        Self { file: self.file.clone(), start: self.start, size: self.size, shape, strides, made: OnceLock::new() }
    }

    /// All bytes, row by row.
    pub(super) fn bytes(&self) -> &[u8] {
        self.made.get_or_init(|| self.gather())
    }

    fn gather(&self) -> Vec<u8> {
        let elems: usize = self.shape.iter().product();
        let mut out = Vec::with_capacity(elems * self.size);
        let (row_len, stride) = match (self.shape.last(), self.strides.last()) {
            (Some(len), Some(stride)) => (*len, *stride),
            _ => (1, 1),
        };
        let leading = &self.shape[..self.shape.len().saturating_sub(1)];
        let mut index = vec![0usize; leading.len()];
        for _ in 0..if elems == 0 { 0 } else { elems / row_len } {
            let row: usize = index.iter().zip(&self.strides).map(|(i, stride)| i * stride).sum();
            let at = |column: usize| self.start + (row + column * stride) * self.size;
            if stride == 1 {
                out.extend_from_slice(&self.file[at(0)..at(row_len)]);
            } else {
                (0..row_len).for_each(|column| out.extend_from_slice(&self.file[at(column)..][..self.size]));
            }
            for (i, dim) in index.iter_mut().zip(leading).rev() {
                *i += 1;
                if *i < *dim {
                    break;
                }
                *i = 0;
            }
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn views_are_put_in_order_and_places_outside_are_refused() {
        let file = Arc::new(Bytes::Owned((0..24).collect()));
        let view = |start, shape: &[usize], strides: &[usize]| Strided::new(file.clone(), start, 2, shape, strides);
        assert_eq!(view(2, &[2, 2], &[1, 3]).unwrap().bytes(), [2, 3, 8, 9, 4, 5, 10, 11]);
        assert_eq!(view(2, &[2, 2], &[1, 3]).unwrap().transposed().bytes(), [2, 3, 4, 5, 8, 9, 10, 11]);
        assert_eq!(view(4, &[3], &[2]).unwrap().bytes(), [4, 5, 8, 9, 12, 13]);
        assert_eq!(view(0, &[], &[]).unwrap().bytes(), [0, 1]);
        assert!(view(24, &[0, 5], &[5, 1]).unwrap().bytes().is_empty());
        assert!(view(2, &[12], &[1]).is_none() && view(0, &[2, 2], &[usize::MAX, 2]).is_none());
    }
}
