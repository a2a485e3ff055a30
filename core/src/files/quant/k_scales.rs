//! The eight 6-bit scales and minimums of Q4_K and Q5_K, in twelve bytes.

/// Scale and minimum of the j-th group of 32.
pub(super) fn scale_min(packed: &[u8; 12], j: usize) -> (f32, f32) {
    let (scale, min) = if j < 4 {
        (packed[j] & 63, packed[j + 4] & 63)
    } else {
        ((packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4, (packed[j + 4] >> 4) | (packed[j] >> 6) << 4)
    };
    (f32::from(scale), f32::from(min))
}
