//! A slice that several threads write in parts, each part by one thread.
#![allow(unsafe_code)]

use std::marker::PhantomData;

/// A mutable slice shared by the chunks of one parallel run.
///
/// Making it is safe; taking a part is not, because nothing but the caller's cutting keeps parts apart.
#[derive(Clone, Copy)]
pub struct Shared<'a, T> {
    base: *mut T,
    len: usize,
    borrowed: PhantomData<&'a mut [T]>,
}

// SAFETY: a `Shared` only hands out parts through `part`, whose contract makes them disjoint, so this is no more than
// sending `&mut [T]` parts to threads.
unsafe impl<T: Send> Send for Shared<'_, T> {}
// SAFETY: as above; `&Shared` gives no access without `part`.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T> Shared<'a, T> {
    /// Takes the slice for as long as the run lasts.
    pub fn new(slice: &'a mut [T]) -> Self {
        Self { base: slice.as_mut_ptr(), len: slice.len(), borrowed: PhantomData }
    }

    /// Elements in all.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Elements `start .. start + len`.
    ///
    /// # Safety
    /// No other live part overlaps these elements.
    ///
    /// # Panics
    /// The part reaches past the end.
    pub unsafe fn part(&self, start: usize, len: usize) -> &'a mut [T] {
        assert!(start <= self.len && len <= self.len - start, "part {start}+{len} of {}", self.len);
        // SAFETY: within the slice by the assertion, and disjoint from other parts by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(start), len) }
    }

    /// Writes element `at`.
    ///
    /// # Safety
    /// No other thread touches the element.
    ///
    /// # Panics
    /// `at` is past the end.
    pub unsafe fn set(&self, at: usize, value: T)
    where
        T: Copy,
    {
        assert!(at < self.len, "element {at} of {}", self.len);
        // SAFETY: within the slice by the assertion; unshared by the caller.
        unsafe { *self.base.add(at) = value }
    }
}

/// Memory for kernels' intermediate results, one piece for each worker of a pool, aligned to cache lines.
pub struct Scratch {
    lines: Vec<Line>,
    per_worker: usize,
    workers: usize,
}

#[repr(C, align(64))]
#[derive(Clone, Copy)]
struct Line([u8; 64]);

impl Scratch {
    /// `bytes` for each of `workers`.
    pub fn new(workers: usize, bytes: usize) -> Self {
        let per_worker = bytes.div_ceil(64);
        Self { lines: vec![Line([0; 64]); per_worker * workers], per_worker, workers }
    }

    /// Workers it is for.
    pub fn workers(&self) -> usize {
        self.workers
    }

    /// Bytes a worker has.
    pub fn bytes_per_worker(&self) -> usize {
        self.per_worker * 64
    }

    /// Bytes in all.
    pub fn bytes(&self) -> usize {
        self.lines.len() * 64
    }

    /// The pieces, to be shared by the chunks of one run.
    pub fn share(&mut self) -> ScratchParts<'_> {
        let per_worker = self.bytes_per_worker();
        let bytes = self.lines.len() * 64;
        // SAFETY: lines are plain bytes, contiguous and 64 bytes each.
        let all = unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast::<u8>(), bytes) };
        ScratchParts { all: Shared::new(all), per_worker }
    }
}

/// The pieces of a [`Scratch`] during a run.
#[derive(Clone, Copy)]
pub struct ScratchParts<'a> {
    all: Shared<'a, u8>,
    per_worker: usize,
}

impl<'a> ScratchParts<'a> {
    /// Bytes a worker has.
    pub fn bytes_per_worker(&self) -> usize {
        self.per_worker
    }

    /// The piece of `worker`.
    ///
    /// # Safety
    /// `worker` is the caller's own worker number in the current run, and no earlier piece of it is still in use.
    pub unsafe fn of(&self, worker: usize) -> &'a mut [u8] {
        // SAFETY: pieces of different workers do not overlap.
        unsafe { self.all.part(worker * self.per_worker, self.per_worker) }
    }
}
