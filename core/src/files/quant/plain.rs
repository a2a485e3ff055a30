//! Plain numbers. Integers and truth values occur as weights only inside other formats; as f32 they are rounded.

use super::each_block;
use crate::files::dtype::Format;
use crate::files::packed::{e4m3, e5m2, e8m0};
use half::{bf16, f16};

macro_rules! plain {
    ($name:ident, $gguf_id:expr, $type:ty, $widen:expr) => {
        pub(super) const $name: Format = Format {
            name: stringify!($name),
            gguf_id: $gguf_id,
            in_safetensors: true,
            block_elems: 1,
            block_bytes: size_of::<$type>(),
            dequant: |bytes, out| {
                let widen: fn($type) -> f32 = $widen;
                each_block(bytes, out, |b: &[u8; size_of::<$type>()], v: &mut [f32; 1]| {
                    v[0] = widen(<$type>::from_le_bytes(*b));
                });
            },
        };
    };
}

plain!(BF16, Some(30), bf16, bf16::to_f32);
plain!(BOOL, None, u8, |x| f32::from(u8::from(x != 0)));
plain!(F16, Some(1), f16, f16::to_f32);
plain!(F32, Some(0), f32, |x| x);
plain!(F64, Some(28), f64, |x| x as f32);
plain!(F8_E4M3, None, u8, e4m3);
plain!(F8_E5M2, None, u8, e5m2);
plain!(F8_E8M0, None, u8, e8m0);
plain!(I16, Some(25), i16, f32::from);
plain!(I32, Some(26), i32, |x| x as f32);
plain!(I64, Some(27), i64, |x| x as f32);
plain!(I8, Some(24), i8, f32::from);
plain!(U16, None, u16, f32::from);
plain!(U32, None, u32, |x| x as f32);
plain!(U64, None, u64, |x| x as f32);
plain!(U8, None, u8, f32::from);

/// Stands for weights whose values are not in bytes of their own.
pub(super) const PACKED: Format = Format {
    name: "packed",
    gguf_id: None,
    in_safetensors: false,
    block_elems: 1,
    block_bytes: 1,
    dequant: |_, out| out.fill(0.0),
};
