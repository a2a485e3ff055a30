//! A tensor as it lies in a file: type, shape and bytes, without a copy.

use super::dtype::DType;
use super::error::FileError;
use super::map::Bytes;
use super::packed::Packed;
use super::strided::Strided;
use std::ops::Range;
use std::sync::Arc;

/// A tensor as stored. Cheap to clone.
///
/// The shape is in PyTorch order: row-major, the last dimension contiguous. A row is a run of the last dimension, and
/// all bytes of a row lie together; a packed weight has no bytes of its own, only values row by row.
#[derive(Clone, Debug)]
pub struct StoredTensor(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    name: String,
    stored_name: String,
    dtype: DType,
    shape: Vec<usize>,
    rows: usize,
    row_len: usize,
    row_bytes: usize,
    data: Data,
}

/// Where the values are.
#[derive(Clone, Debug)]
enum Data {
    /// In one run of bytes.
    Bytes { file: Arc<Bytes>, start: usize },
    /// In another order than the tensor's; the first byte of those in order that counts.
    Strided { elems: Arc<Strided>, first: usize },
    /// In several tensors; the first row of theirs that counts.
    Packed { format: &'static str, packed: Arc<dyn Packed>, first: usize },
}

/// What a container says of a tensor.
#[derive(Clone, Debug)]
pub struct TensorFacts {
    /// Its name in Hugging Face checkpoints.
    pub name: String,
    /// Its name in the file.
    pub stored_name: String,
    /// Type of its elements.
    pub dtype: DType,
    /// Dimensions in PyTorch order.
    pub shape: Vec<usize>,
}

impl TensorFacts {
    /// Bytes of the whole tensor.
    ///
    /// # Errors
    /// Dimensions whose product cannot be counted, or rows that do not fill whole blocks.
    pub fn bytes(&self) -> Result<usize, FileError> {
        let (rows, row_len) = self.split()?;
        let row_bytes = self.row_bytes(row_len)?;
        rows.checked_mul(row_bytes).ok_or_else(|| self.fault("its size overflows"))
    }

    /// Strides of elements without gaps, row by row.
    fn row_major(&self) -> Vec<usize> {
        let mut strides = vec![1usize; self.shape.len()];
        for i in (1..self.shape.len()).rev() {
            strides[i - 1] = strides[i].saturating_mul(self.shape[i]);
        }
        strides
    }

    fn split(&self) -> Result<(usize, usize), FileError> {
        let (row_len, leading) = self.shape.split_last().map_or((1, &[][..]), |(last, leading)| (*last, leading));
        let rows = leading.iter().try_fold(1usize, |product, dim| product.checked_mul(*dim));
        let rows = rows.ok_or_else(|| self.fault("its size overflows"))?;
        // A zero elsewhere must not hide an overflow of the other dimensions.
        let nonzero = self.shape.iter().filter(|dim| **dim > 0);
        let product = nonzero.copied().try_fold(1usize, usize::checked_mul);
        product.ok_or_else(|| self.fault("its size overflows"))?;
        Ok((rows, row_len))
    }

    fn row_bytes(&self, row_len: usize) -> Result<usize, FileError> {
        self.dtype.row_bytes(row_len).ok_or_else(|| {
            let block = self.dtype.block_elems();
            self.fault(&format!("rows of {row_len} elements do not fill blocks of {block}"))
        })
    }

    fn fault(&self, what: &str) -> FileError {
        FileError::Shape {
            name: self.stored_name.clone(),
            dtype: self.dtype.name(),
            shape: self.shape.clone(),
            what: what.into(),
        }
    }
}

impl StoredTensor {
    /// The tensor described by `facts` whose bytes start at `start` of `file`.
    ///
    /// # Errors
    /// Sizes that overflow, rows that do not fill whole blocks, or bytes past the end of `file`.
    pub fn new(facts: TensorFacts, file: Arc<Bytes>, start: usize) -> Result<Self, FileError> {
        let (rows, row_len) = facts.split()?;
        let row_bytes = facts.row_bytes(row_len)?;
        let end = start.checked_add(facts.bytes()?);
        if end.is_none_or(|end| end > file.len()) {
            return Err(facts.fault("its bytes lie past the end of the file"));
        }
        let TensorFacts { name, stored_name, dtype, shape } = facts;
        let data = Data::Bytes { file, start };
        Ok(Self(Arc::new(Inner { name, stored_name, dtype, shape, rows, row_len, row_bytes, data })))
    }

    /// The tensor described by `facts` whose elements lie at `strides` (in elements) from byte `start` of `file` on.
    ///
    /// # Errors
    /// Elements past the end of `file`, sizes that overflow, or a type in blocks.
    pub(super) fn strided(
        facts: TensorFacts,
        file: Arc<Bytes>,
        start: usize,
        strides: &[usize],
    ) -> Result<Self, FileError> {
        facts.bytes()?;
        if strides == facts.row_major() {
            return Self::new(facts, file, start);
        }
        let elems = Strided::new(file, start, facts.dtype.block_bytes(), &facts.shape, strides);
        match elems.filter(|_| facts.dtype.block_elems() == 1) {
            Some(elems) => Self::from_strided(facts, elems),
            None => Err(facts.fault("its elements lie past the end of the file")),
        }
    }

    fn from_strided(facts: TensorFacts, elems: Strided) -> Result<Self, FileError> {
        let (rows, row_len) = facts.split()?;
        let row_bytes = facts.row_bytes(row_len)?;
        let TensorFacts { name, stored_name, dtype, shape } = facts;
        let data = Data::Strided { elems: Arc::new(elems), first: 0 };
        Ok(Self(Arc::new(Inner { name, stored_name, dtype, shape, rows, row_len, row_bytes, data })))
    }

    /// The weight `name` of `shape` made of the tensors of `packed`, in the format called `format`.
    pub(super) fn packed(name: &str, format: &'static str, shape: &[usize], packed: Arc<dyn Packed>) -> Self {
        let stored_name = packed.parts().first().map_or(name, |part| part.stored_name()).to_string();
        Self::from_packed(name, stored_name, shape, Data::Packed { format, packed, first: 0 })
    }

    fn from_packed(name: &str, stored_name: String, shape: &[usize], data: Data) -> Self {
        let (row_len, leading) = shape.split_last().map_or((1, &[][..]), |(last, leading)| (*last, leading));
        Self(Arc::new(Inner {
            name: name.into(),
            stored_name,
            dtype: DType::PACKED,
            shape: shape.to_vec(),
            rows: leading.iter().product(),
            row_len,
            row_bytes: 0,
            data,
        }))
    }

    /// A tensor over bytes held in memory.
    ///
    /// # Errors
    /// Sizes that overflow or do not match the bytes.
    pub fn from_bytes(name: &str, dtype: DType, shape: &[usize], bytes: Vec<u8>) -> Result<Self, FileError> {
        let facts = TensorFacts { name: name.into(), stored_name: name.into(), dtype, shape: shape.to_vec() };
        if facts.bytes()? != bytes.len() {
            return Err(facts.fault(&format!("{} bytes were given", bytes.len())));
        }
        Self::new(facts, Arc::new(Bytes::Owned(bytes)), 0)
    }

    /// An F32 tensor over values held in memory.
    ///
    /// # Errors
    /// A shape that does not match the values.
    pub fn from_f32(name: &str, shape: &[usize], values: &[f32]) -> Result<Self, FileError> {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Self::from_bytes(name, DType::F32, shape, bytes)
    }

    /// The same tensor under another name.
    pub fn renamed(&self, name: &str) -> Self {
        let Inner { stored_name, dtype, shape, rows, row_len, row_bytes, data, .. } = &*self.0;
        Self(Arc::new(Inner {
            name: name.into(),
            stored_name: stored_name.clone(),
            dtype: *dtype,
            shape: shape.clone(),
            rows: *rows,
            row_len: *row_len,
            row_bytes: *row_bytes,
            data: data.clone(),
        }))
    }

    /// Rows `rows` (of a vector: elements) under another name and shape, where they lie.
    ///
    /// # Errors
    /// Rows outside the tensor, elements of a vector stored in blocks, or a shape of another size.
    pub fn part(&self, name: &str, rows: Range<usize>, shape: &[usize]) -> Result<Self, FileError> {
        let Inner { stored_name, dtype, data, row_bytes, .. } = &*self.0;
        let (count, size) = match self.shape() {
            [n] if dtype.block_elems() == 1 => (*n, row_bytes.checked_div(*n).unwrap_or(0)),
            _ => (self.rows(), *row_bytes),
        };
        if rows.start > rows.end || rows.end > count {
            return Err(FileError::Rows { name: self.name().into(), rows: count, asked: rows.end });
        }
        let facts =
            TensorFacts { name: name.into(), stored_name: stored_name.clone(), dtype: *dtype, shape: shape.to_vec() };
        match data {
            Data::Bytes { file, start } if facts.bytes()? == rows.len() * size => {
                Self::new(facts, file.clone(), start + rows.start * size)
            }
            Data::Strided { elems, first } if facts.bytes()? == rows.len() * size => {
                let (rows_of_part, row_len) = facts.split()?;
                let row_bytes = facts.row_bytes(row_len)?;
                let data = Data::Strided { elems: elems.clone(), first: first + rows.start * size };
                let TensorFacts { name, stored_name, dtype, shape } = facts;
                let rows = rows_of_part;
                Ok(Self(Arc::new(Inner { name, stored_name, dtype, shape, rows, row_len, row_bytes, data })))
            }
            Data::Packed { format, packed, first } if facts.split()? == (rows.len(), self.row_len()) => {
                let data = Data::Packed { format, packed: packed.clone(), first: first + rows.start };
                Ok(Self::from_packed(name, stored_name.clone(), shape, data))
            }
            _ => Err(facts.fault(&format!("{} rows are meant", rows.len()))),
        }
    }

    /// The same values with the last two axes swapped; put in order when they are first asked for.
    ///
    /// # Errors
    /// Elements stored in blocks, or fewer than two axes.
    pub fn transposed(&self) -> Result<Self, FileError> {
        let Inner { name, stored_name, dtype, shape, .. } = &*self.0;
        let mut facts =
            TensorFacts { name: name.clone(), stored_name: stored_name.clone(), dtype: *dtype, shape: shape.clone() };
        let axes = shape.len();
        if let (Data::Packed { format, packed, first: 0 }, true) = (&self.0.data, axes >= 2)
            && let Some(packed) = packed.transposed()
        {
            facts.shape.swap(axes - 2, axes - 1);
            let data = Data::Packed { format, packed, first: 0 };
            return Ok(Self::from_packed(&facts.name, facts.stored_name, &facts.shape, data));
        }
        if matches!(self.0.data, Data::Packed { .. }) {
            let values = Self::from_f32(&facts.name, &facts.shape, &self.to_f32())?;
            return values.transposed();
        }
        if axes < 2 || dtype.block_elems() != 1 {
            return Err(facts.fault("it cannot be transposed"));
        }
        let elems = match &self.0.data {
            Data::Bytes { file, start } => {
                let strides = facts.row_major();
                Strided::new(file.clone(), *start, dtype.block_bytes(), shape, &strides).map(|elems| elems.transposed())
            }
            Data::Strided { elems, first: 0 } if elems.shape() == shape => Some(elems.transposed()),
            Data::Strided { .. } => return Self::from_bytes(name, *dtype, shape, self.bytes().to_vec())?.transposed(),
            Data::Packed { .. } => None,
        };
        let elems = elems.ok_or_else(|| facts.fault("it cannot be transposed"))?;
        facts.shape.swap(axes - 2, axes - 1);
        Self::from_strided(facts, elems)
    }

    /// Its name in Hugging Face checkpoints.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Its name in the file, which for GGUF is another one.
    pub fn stored_name(&self) -> &str {
        &self.0.stored_name
    }

    /// Type of its elements.
    pub fn dtype(&self) -> DType {
        self.0.dtype
    }

    /// Dimensions in PyTorch order.
    pub fn shape(&self) -> &[usize] {
        &self.0.shape
    }

    /// Elements in all.
    pub fn elems(&self) -> usize {
        self.0.rows * self.0.row_len
    }

    /// Rows: the product of all dimensions but the last (1 for a vector or a scalar).
    pub fn rows(&self) -> usize {
        self.0.rows
    }

    /// Elements of a row: the last dimension (1 for a scalar).
    pub fn row_len(&self) -> usize {
        self.0.row_len
    }

    /// How it is stored: the name of its element type, or of the format of a packed weight.
    pub fn stored_as(&self) -> &'static str {
        match &self.0.data {
            Data::Bytes { .. } | Data::Strided { .. } => self.0.dtype.name(),
            Data::Packed { format, .. } => format,
        }
    }

    /// Bytes it takes as stored, with scales and all that belongs to it. Of a part of a packed weight: its share.
    pub fn stored_bytes(&self) -> usize {
        match &self.0.data {
            Data::Bytes { .. } | Data::Strided { .. } => self.0.rows * self.0.row_bytes,
            Data::Packed { packed, .. } => {
                let whole: usize = packed.parts().iter().map(Self::stored_bytes).sum();
                let all = packed.rows().max(1);
                (whole as u128 * self.0.rows.min(all) as u128 / all as u128) as usize
            }
        }
    }

    /// Bytes of memory it takes beside the file once it was used: those of elements put in order. None of what is read
    /// where it lies.
    pub fn copied_bytes(&self) -> usize {
        match &self.0.data {
            Data::Bytes { .. } => 0,
            Data::Strided { .. } => self.stored_bytes(),
            Data::Packed { packed, .. } => packed.parts().iter().map(Self::copied_bytes).sum(),
        }
    }

    /// The tensors with bytes of their own that it is made of.
    pub(super) fn leaves(&self) -> Vec<&Self> {
        match &self.0.data {
            Data::Packed { packed, .. } => packed.parts().iter().flat_map(Self::leaves).collect(),
            _ => vec![self],
        }
    }

    /// Bytes of one row; none of a packed weight.
    pub fn row_size(&self) -> usize {
        self.0.row_bytes
    }

    /// All its bytes as they lie in the file. They need not be aligned to the element size. A packed weight has none.
    pub fn bytes(&self) -> &[u8] {
        let Inner { data, rows, row_bytes, .. } = &*self.0;
        match data {
            Data::Bytes { file, start } => &file[*start..start + rows * row_bytes],
            Data::Strided { elems, first } => &elems.bytes()[*first..first + rows * row_bytes],
            Data::Packed { .. } => &[],
        }
    }

    /// The bytes of a range of rows.
    ///
    /// # Errors
    /// A row outside the tensor.
    pub fn row_bytes(&self, range: Range<usize>) -> Result<&[u8], FileError> {
        let Inner { name, rows, row_bytes, .. } = &*self.0;
        if range.start > range.end || range.end > *rows {
            return Err(FileError::Rows { name: name.clone(), rows: *rows, asked: range.end });
        }
        Ok(&self.bytes()[range.start * row_bytes..range.end * row_bytes])
    }

    /// Rows `range` as f32 into `out`, exactly.
    ///
    /// # Errors
    /// A row outside the tensor, or a buffer of another size than the rows have values.
    pub fn dequant_rows(&self, range: Range<usize>, out: &mut [f32]) -> Result<(), FileError> {
        let bytes = self.row_bytes(range.clone())?;
        let needed = range.len() * self.row_len();
        if out.len() != needed {
            return Err(FileError::Buffer { name: self.name().into(), needed, given: out.len() });
        }
        match &self.0.data {
            Data::Bytes { .. } | Data::Strided { .. } => self.dtype().dequant(bytes, out),
            Data::Packed { packed, first, .. } => packed.read(first + range.start..first + range.end, out),
        }
        Ok(())
    }

    /// All its values as f32.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut out = vec![0.0; self.elems()];
        match &self.0.data {
            Data::Bytes { .. } | Data::Strided { .. } => self.dtype().dequant(self.bytes(), &mut out),
            Data::Packed { packed, first, .. } => packed.read(*first..first + self.rows(), &mut out),
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_of_a_matrix() {
        let values: Vec<f32> = (0..6).map(|i| i as f32).collect();
        let t = StoredTensor::from_f32("w", &[3, 2], &values).unwrap();
        assert_eq!((t.rows(), t.row_len(), t.elems()), (3, 2, 6));
        let mut out = [0.0; 4];
        t.dequant_rows(1..3, &mut out).unwrap();
        assert_eq!(out, [2.0, 3.0, 4.0, 5.0]);
        assert!(matches!(t.dequant_rows(2..4, &mut out), Err(FileError::Rows { asked: 4, .. })));
        assert!(matches!(t.dequant_rows(0..1, &mut out), Err(FileError::Buffer { needed: 2, given: 4, .. })));
        assert_eq!(t.to_f32(), values);
    }

    #[test]
    fn parts_and_transposes() {
        let values: Vec<f32> = (0..12).map(|i| i as f32).collect();
        let t = StoredTensor::from_f32("w", &[2, 3, 2], &values).unwrap();
        let part = t.part("w[2..4]", 2..4, &[2, 2]).unwrap();
        assert_eq!((part.name(), part.to_f32()), ("w[2..4]", vec![4.0, 5.0, 6.0, 7.0]));
        assert!(t.part("w", 5..7, &[2, 2]).is_err() && t.part("w", 0..2, &[3, 2]).is_err());
        let swapped = t.transposed().unwrap();
        assert_eq!(swapped.shape(), [2, 2, 3]);
        assert_eq!(swapped.to_f32(), [0.0, 2.0, 4.0, 1.0, 3.0, 5.0, 6.0, 8.0, 10.0, 7.0, 9.0, 11.0]);
        let vector = StoredTensor::from_f32("v", &[4], &values[..4]).unwrap();
        assert_eq!(vector.part("v", 1..3, &[2]).unwrap().to_f32(), [1.0, 2.0]);
        assert!(vector.transposed().is_err());
    }

    #[test]
    fn scalars_and_empty_tensors() {
        let scalar = StoredTensor::from_f32("s", &[], &[2.5]).unwrap();
        assert_eq!((scalar.rows(), scalar.row_len()), (1, 1));
        let empty = StoredTensor::from_f32("e", &[0, 4], &[]).unwrap();
        assert_eq!((empty.rows(), empty.elems()), (0, 0));
    }

    #[test]
    fn sizes_that_cannot_be_are_refused() {
        for shape in [vec![1 << 40, 1 << 40], vec![0, 1 << 40, 1 << 40], vec![1 << 63, 2]] {
            assert!(StoredTensor::from_bytes("w", DType::F32, &shape, vec![]).is_err(), "{shape:?}");
        }
        assert!(StoredTensor::from_bytes("w", DType::Q4_K, &[1, 100], vec![0; 144]).is_err());
        assert!(StoredTensor::from_f32("w", &[3], &[1.0]).is_err());
    }
}
