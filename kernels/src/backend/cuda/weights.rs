//! Weights on the device: which form a stored tensor gets, how its rows are laid out, and bringing them there.
//!
//! A [`Form`] is how a kernel reads a row; see `cu/forms.cuh` for the layouts. Tensors of one form and row length that are read together lie one
//! below the other, so that several maps of one input are one matrix. Tensors without a form of their own are rounded to
//! bf16. Rows are laid out by several threads into pinned memory, each copying while it lays out the next piece.

use super::device::Device;
use super::error::CudaError;
use super::memory::{Buffer, Ledger, Pinned, Purpose};
use crit_core::files::{DType, StoredTensor};
use cudarc::driver::result;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

/// How rows lie in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Form {
    /// Plain bf16.
    Bf16,
    /// Plain f16.
    F16,
    /// Codes of 8 bits, f16 scales of 32.
    Q8,
    /// Q4_K in planes.
    Q4K,
    /// Q6_K in planes.
    Q6K,
}

impl Form {
    /// The form a tensor gets.
    pub fn of(tensor: &StoredTensor) -> Self {
        let fits = |form: Self| tensor.row_len().is_multiple_of(form.block());
        match tensor.dtype() {
            DType::F16 => Self::F16,
            DType::Q8_0 if fits(Self::Q8) => Self::Q8,
            DType::Q4_K if fits(Self::Q4K) => Self::Q4K,
            DType::Q6_K if fits(Self::Q6K) => Self::Q6K,
            _ => Self::Bf16,
        }
    }

    /// Its type's name in kernel text.
    pub const fn type_name(self) -> &'static str {
        match self {
            Self::Bf16 => "FormBf16",
            Self::F16 => "FormF16",
            Self::Q8 => "FormQ8",
            Self::Q4K => "FormQ4K",
            Self::Q6K => "FormQ6K",
        }
    }

    /// Its name in kernel names.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Bf16 => "bf16",
            Self::F16 => "f16",
            Self::Q8 => "q8",
            Self::Q4K => "q4k",
            Self::Q6K => "q6k",
        }
    }

    /// Elements of a chunk.
    pub const fn chunk(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 8,
            Self::Q8 => 16,
            Self::Q4K | Self::Q6K => 32,
        }
    }

    /// Elements a row's length is a multiple of.
    const fn block(self) -> usize {
        match self {
            Self::Bf16 | Self::F16 => 8,
            Self::Q8 => 32,
            Self::Q4K | Self::Q6K => 256,
        }
    }

    /// Whether a library product reads it as it is.
    pub const fn plain(self) -> bool {
        matches!(self, Self::Bf16 | Self::F16)
    }

    /// Bytes of a row of `k` elements, a multiple of 16.
    pub const fn row_bytes(self, k: usize) -> usize {
        let bytes = match self {
            Self::Bf16 | Self::F16 => 2 * k,
            Self::Q8 => k + k / 16,
            Self::Q4K => k / 2 + k / 16,
            Self::Q6K => k / 2 + k / 4 + k / 16 + k / 128,
        };
        bytes.next_multiple_of(16)
    }

    /// Lays out one row.
    fn lay_out(self, tensor: &StoredTensor, row: usize, values: &mut [f32], out: &mut [u8]) -> Result<(), CudaError> {
        match (self, tensor.dtype()) {
            (Self::Bf16, DType::BF16) | (Self::F16, DType::F16) => {
                let bytes = tensor.row_bytes(row..row + 1)?;
                out[..bytes.len()].copy_from_slice(bytes);
            }
            (Self::Bf16 | Self::F16, _) => {
                tensor.dequant_rows(row..row + 1, values)?;
                for (value, out) in values.iter().zip(out.chunks_exact_mut(2)) {
                    let bits = if self == Self::Bf16 {
                        half::bf16::from_f32(*value).to_bits()
                    } else {
                        half::f16::from_f32(*value).to_bits()
                    };
                    out.copy_from_slice(&bits.to_le_bytes());
                }
            }
            (Self::Q8, _) => q8(tensor.row_bytes(row..row + 1)?, out),
            (Self::Q4K, _) => q4k(tensor.row_bytes(row..row + 1)?, out),
            (Self::Q6K, _) => q6k(tensor.row_bytes(row..row + 1)?, out),
        }
        Ok(())
    }
}

fn q8(row: &[u8], out: &mut [u8]) {
    let k = row.len() / 34 * 32;
    for (i, block) in row.chunks_exact(34).enumerate() {
        out[32 * i..32 * i + 32].copy_from_slice(&block[2..]);
        out[k + 2 * i..k + 2 * i + 2].copy_from_slice(&block[..2]);
    }
}

fn q4k(row: &[u8], out: &mut [u8]) {
    let blocks = row.len() / 144;
    for (i, block) in row.chunks_exact(144).enumerate() {
        let scales = &block[4..16];
        let mut pairs = [0u8; 12];
        for j in 0..8 {
            let (scale, min) = if j < 4 {
                (scales[j] & 63, scales[j + 4] & 63)
            } else {
                let low = scales[j + 4];
                ((low & 15) | (scales[j - 4] >> 6 << 4), (low >> 4) | (scales[j] >> 6 << 4))
            };
            let pair = u16::from(scale) | u16::from(min) << 6;
            let (byte, shift) = (12 * j / 8, 12 * j % 8);
            let wide = pair << shift;
            pairs[byte] |= wide as u8;
            pairs[byte + 1] |= (wide >> 8) as u8;
        }
        out[16 * i..16 * i + 4].copy_from_slice(&block[..4]);
        out[16 * i + 4..16 * i + 16].copy_from_slice(&pairs);
        let codes = &mut out[16 * blocks + 128 * i..][..128];
        for part in 0..8 {
            let stored = &block[16 + part / 2 * 32..][..32];
            let nibble = |j: usize| if part % 2 == 0 { stored[j] & 15 } else { stored[j] >> 4 };
            for j in 0..16 {
                codes[16 * part + j] = nibble(j) | nibble(j + 16) << 4;
            }
        }
    }
}

fn q6k(row: &[u8], out: &mut [u8]) {
    let k = row.len() / 210 * 256;
    let (high_at, scales_at, d_at) = (k / 2, k / 2 + k / 4, k / 2 + k / 4 + k / 16);
    for (i, block) in row.chunks_exact(210).enumerate() {
        let mut codes = [0u8; 256];
        for half in 0..2 {
            let (low, high) = (&block[64 * half..][..64], &block[128 + 32 * half..][..32]);
            for l in 0..32 {
                let at = 128 * half + l;
                codes[at] = (low[l] & 15) | (high[l] & 3) << 4;
                codes[at + 32] = (low[l + 32] & 15) | (high[l] >> 2 & 3) << 4;
                codes[at + 64] = (low[l] >> 4) | (high[l] >> 4 & 3) << 4;
                codes[at + 96] = (low[l + 32] >> 4) | (high[l] >> 6 & 3) << 4;
            }
        }
        for (part, codes) in codes.chunks_exact(32).enumerate() {
            let chunk = 8 * i + part;
            for j in 0..16 {
                out[16 * chunk + j] = (codes[j] & 15) | (codes[j + 16] & 15) << 4;
            }
            for (half, codes) in codes.chunks_exact(16).enumerate() {
                for (j, code) in codes.iter().enumerate() {
                    out[high_at + 8 * chunk + 4 * half + j % 4] |= (code >> 4) << (2 * (j / 4));
                }
            }
        }
        out[scales_at + 16 * i..scales_at + 16 * i + 16].copy_from_slice(&block[192..208]);
        out[d_at + 2 * i..d_at + 2 * i + 2].copy_from_slice(&block[208..210]);
    }
}

/// A weight on the device: `rows` rows of `k` elements, one below the other.
#[derive(Debug)]
pub struct Matrix {
    /// How rows lie.
    pub form: Form,
    /// Rows.
    pub rows: usize,
    /// Elements of a row.
    pub k: usize,
    /// Bytes from row to row.
    pub row_bytes: usize,
    buffer: Buffer,
}

impl Matrix {
    /// Where the first row is.
    pub fn ptr(&self) -> u64 {
        self.buffer.ptr()
    }

    /// Chunks of a row; what the last one has too much is zero.
    pub const fn chunks(&self) -> usize {
        self.k.div_ceil(self.form.chunk())
    }
}

/// Brings weights to the device.
pub struct Loader {
    device: Arc<Device>,
    ledger: Arc<Ledger>,
    /// What each tensor takes there, where that is not what the checkpoint takes.
    told: Vec<(String, u64)>,
    /// Rooms for pieces, kept from matrix to matrix: pinning memory takes longer than filling it.
    rooms: Mutex<Vec<Rooms>>,
}

/// What a thread lays out into, and the stream it copies on.
struct Rooms {
    pinned: [Pinned; 2],
    stream: Stream,
}

/// Bytes of a piece that is laid out and copied at a time.
const PIECE: usize = 8 << 20;
/// Most threads that lay out.
const THREADS: usize = 12;

impl Loader {
    /// A loader for `device`.
    pub fn new(device: &Arc<Device>, ledger: &Arc<Ledger>) -> Self {
        Self { device: device.clone(), ledger: ledger.clone(), told: Vec::new(), rooms: Mutex::default() }
    }

    /// Tensors with the bytes they take on the device, where that is not as the checkpoint stores them.
    pub fn told(self) -> Vec<(String, u64)> {
        self.told
    }

    /// The rows of all `tensors`, one below the other. All have the same form and row length.
    ///
    /// # Errors
    /// Memory, or a file that cannot be read.
    pub fn matrix(&mut self, tensors: &[StoredTensor]) -> Result<Matrix, CudaError> {
        let (form, k) = (Form::of(&tensors[0]), tensors[0].row_len());
        let row_bytes = form.row_bytes(k);
        let rows = tensors.iter().map(StoredTensor::rows).sum();
        let purpose = if form.plain() { Purpose::Weights } else { Purpose::Packs };
        let buffer = Buffer::zeroed(&self.device, &self.ledger, purpose, (rows * row_bytes) as u64)?;
        self.device.wait()?;
        self.fill(tensors, form, &buffer)?;
        for tensor in tensors {
            let bytes = (tensor.rows() * row_bytes) as u64;
            if bytes != tensor.stored_bytes() as u64 {
                self.told.push((tensor.name().into(), bytes));
            }
        }
        Ok(Matrix { form, rows, k, row_bytes, buffer })
    }

    /// A vector as f32, each element plus `offset`.
    ///
    /// # Errors
    /// Memory.
    pub fn vector(&mut self, tensors: &[StoredTensor], offset: f32) -> Result<Buffer, CudaError> {
        let values: Vec<f32> = tensors.iter().flat_map(StoredTensor::to_f32).map(|value| value + offset).collect();
        for tensor in tensors {
            let bytes = 4 * tensor.elems() as u64;
            if bytes != tensor.stored_bytes() as u64 {
                self.told.push((tensor.name().into(), bytes));
            }
        }
        self.floats(&values, Purpose::Weights)
    }

    /// Numbers as f32.
    ///
    /// # Errors
    /// Memory.
    pub fn floats(&self, values: &[f32], purpose: Purpose) -> Result<Buffer, CudaError> {
        // Read 8 at a time.
        let bytes = 4 * values.len().next_multiple_of(8) as u64;
        let buffer = Buffer::zeroed(&self.device, &self.ledger, purpose, bytes)?;
        self.device.wait()?;
        // SAFETY: the buffer has the size of the values.
        unsafe { result::memcpy_htod_sync(buffer.ptr(), values) }.map_err(CudaError::driver("copy to the device"))?;
        Ok(buffer)
    }

    /// Rooms of at least `bytes` each, used before or new.
    fn rooms(&self, bytes: usize) -> Result<Rooms, CudaError> {
        let used = self.rooms.lock().unwrap_or_else(PoisonError::into_inner).pop();
        match used.filter(|rooms| rooms.pinned[0].bytes() >= bytes) {
            Some(rooms) => Ok(rooms),
            None => {
                let one = || Pinned::new(&self.device, bytes.max(PIECE));
                Ok(Rooms { pinned: [one()?, one()?], stream: Stream::new()? })
            }
        }
    }

    fn fill(&self, tensors: &[StoredTensor], form: Form, buffer: &Buffer) -> Result<(), CudaError> {
        let k = tensors[0].row_len();
        let row_bytes = form.row_bytes(k);
        let rows_a_piece = (PIECE / row_bytes).max(1);
        // Pieces: tensor, its first row, rows, and the row of the matrix they begin at.
        let mut pieces = Vec::new();
        let mut below = 0;
        for tensor in tensors {
            for first in (0..tensor.rows()).step_by(rows_a_piece) {
                pieces.push((tensor, first, rows_a_piece.min(tensor.rows() - first), below + first));
            }
            below += tensor.rows();
        }
        let next = AtomicUsize::new(0);
        let threads = std::thread::available_parallelism().map_or(1, usize::from).min(THREADS).min(pieces.len()).max(1);
        let work = || -> Result<(), CudaError> {
            self.device.make_current()?;
            let mut rooms = self.rooms(rows_a_piece * row_bytes)?;
            let Rooms { pinned, stream } = &mut rooms;
            let mut values = vec![0.0; k];
            for turn in 0.. {
                let Some((tensor, first, rows, at)) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) else { break };
                // The copy before last has read this room when the one before is waited for.
                let room = &mut pinned[turn % 2];
                let bytes = rows * row_bytes;
                let out = &mut room.bytes_mut()[..bytes];
                if !form.plain() || row_bytes != 2 * k {
                    out.fill(0);
                }
                for (row, out) in out.chunks_exact_mut(row_bytes).enumerate() {
                    form.lay_out(tensor, first + row, &mut values, out)?;
                }
                stream.wait()?;
                room.upload(buffer.ptr() + (at * row_bytes) as u64, bytes, stream.0)?;
            }
            stream.wait()?;
            self.rooms.lock().unwrap_or_else(PoisonError::into_inner).push(rooms);
            Ok(())
        };
        if threads == 1 {
            return work();
        }
        std::thread::scope(|scope| {
            let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let lost = || CudaError::Driver { what: "loading weights", why: "a thread ended early".into() };
            all.into_iter().try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(lost())))
        })
    }
}

struct Stream(cudarc::driver::sys::CUstream);

// SAFETY: a handle of the device's context, used by one thread at a time.
unsafe impl Send for Stream {}

impl Stream {
    fn new() -> Result<Self, CudaError> {
        result::stream::create(result::stream::StreamKind::NonBlocking).map(Self).map_err(CudaError::driver("stream"))
    }

    fn wait(&self) -> Result<(), CudaError> {
        // SAFETY: a live stream.
        unsafe { result::stream::synchronize(self.0) }.map_err(CudaError::driver("copying weights"))
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made by `new`, all work on it was waited for or is abandoned.
        let _ = unsafe { result::stream::destroy(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `decode` of `cu/forms.cuh` does, in Rust.
    fn decode(form: Form, row: &[u8], k: usize, i: usize) -> f32 {
        let half = |at: usize| half::f16::from_bits(u16::from_le_bytes([row[at], row[at + 1]])).to_f32();
        let (chunk, j) = (i / 32, i % 32);
        match form {
            Form::Q8 => f32::from(row[i] as i8) * half(k + i / 32 * 2),
            Form::Q4K => {
                let head = chunk / 8 * 16;
                let bit = chunk % 8 * 12;
                let pairs = u128::from_le_bytes(row[head..head + 16].try_into().unwrap()) >> 32;
                let pair = (pairs >> bit) as u32 & 0xfff;
                let byte = row[k / 16 + chunk * 16 + j % 16];
                let code = if j < 16 { byte & 15 } else { byte >> 4 };
                half(head) * (pair & 63) as f32 * f32::from(code) - half(head + 2) * (pair >> 6) as f32
            }
            Form::Q6K => {
                let byte = row[chunk * 16 + j % 16];
                let low = if j < 16 { byte & 15 } else { byte >> 4 };
                let high = row[k / 2 + chunk * 8 + j / 16 * 4 + j % 4] >> (2 * (j % 16 / 4)) & 3;
                let scale = row[k / 2 + k / 4 + chunk * 2 + j / 16] as i8;
                let d = half(k / 2 + k / 4 + k / 16 + chunk / 8 * 2);
                d * f32::from(scale) * f32::from((low | high << 4) as i8 - 32)
            }
            Form::Bf16 | Form::F16 => unreachable!("plain forms are copied"),
        }
    }

    #[test]
    fn laid_out_rows_hold_the_values_of_the_stored_ones() {
        for (dtype, form) in [(DType::Q8_0, Form::Q8), (DType::Q4_K, Form::Q4K), (DType::Q6_K, Form::Q6K)] {
            let k = 768;
            let size = dtype.row_bytes(k).unwrap();
            // Any bytes are a row, but for scales that are no numbers: keep the high byte of every f16 small.
            let bytes: Vec<u8> = (0..size as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
            let mut bytes = bytes;
            for block in bytes.chunks_exact_mut(dtype.block_bytes()) {
                match dtype {
                    DType::Q8_0 => block[1] = 0x20,
                    DType::Q4_K => (block[1], block[3]) = (0x21, 0x1e),
                    _ => block[209] = 0x1d,
                }
            }
            let tensor = StoredTensor::from_bytes("w", dtype, &[1, k], bytes).unwrap();
            assert_eq!(Form::of(&tensor), form);
            let mut out = vec![0; form.row_bytes(k)];
            form.lay_out(&tensor, 0, &mut vec![0.0; k], &mut out).unwrap();
            for (i, want) in tensor.to_f32().iter().enumerate() {
                let got = decode(form, &out, k, i);
                assert!((got - want).abs() <= 1e-6 * want.abs(), "{form:?} element {i}: {got} for {want}");
            }
        }
    }
}
