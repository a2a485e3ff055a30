//! The pickle machine, cut down to what state dicts are written with: no opcode imports, calls or builds anything but
//! the values of [`super::value`]. Every count is checked against the bytes that are left before anything is made.

use super::globals::{self, Global};
use super::value::{Id, Storage, Value, Values};
use std::collections::HashMap;

/// Newest protocol that is read; nothing newer exists.
const MAX_PROTOCOL: u8 = 5;

/// A pickle's values and its result.
pub(super) struct Pickle {
    pub(super) values: Values,
    pub(super) root: Id,
    /// Bytes it took.
    pub(super) bytes: usize,
}

struct Machine<'a> {
    bytes: &'a [u8],
    at: usize,
    values: Values,
    stack: Vec<Id>,
    marks: Vec<usize>,
    memo: HashMap<u32, Id>,
}

/// Reads the pickle that `bytes` begin with.
pub(super) fn read(bytes: &[u8]) -> Result<Pickle, String> {
    let mut machine =
        Machine { bytes, at: 0, values: Values::default(), stack: Vec::new(), marks: Vec::new(), memo: HashMap::new() };
    while !machine.step()? {}
    let root = machine.pop()?;
    Ok(Pickle { values: machine.values, root, bytes: machine.at })
}

impl<'a> Machine<'a> {
    /// Runs the next opcode; whether it was the last.
    fn step(&mut self) -> Result<bool, String> {
        let [code] = self.array()?;
        match code {
            b'.' => return Ok(true),
            0x80 => {
                let [protocol] = self.array()?;
                if protocol > MAX_PROTOCOL {
                    return Err(format!("its pickle is of protocol {protocol}, up to {MAX_PROTOCOL} are read"));
                }
            }
            // A frame only says how far a reader may read ahead.
            0x95 => {
                let length = u64::from_le_bytes(self.array()?);
                if length > self.left() as u64 {
                    return Err("a frame of its pickle runs past its end".into());
                }
            }
            b'(' => self.marks.push(self.stack.len()),
            b'0' => {
                self.pop()?;
            }
            b'1' => {
                self.take_marked()?;
            }
            b'2' => {
                let top = self.pop()?;
                self.stack.extend([top, top]);
            }
            b'N' => self.push(Value::None)?,
            0x88 | 0x89 => self.push(Value::Bool)?,
            b'J' | b'K' | b'M' | 0x8a | 0x8b => self.number(code)?,
            b'G' => {
                self.array::<8>()?;
                self.push(Value::Other)?;
            }
            b'X' | 0x8c | 0x8d | b'T' | b'U' | b'B' | b'C' | 0x8e => self.text(code)?,
            b'}' => self.push(Value::Dict(Vec::new()))?,
            b']' => self.push(Value::List(Vec::new()))?,
            b')' => self.push(Value::Tuple(Box::default()))?,
            b't' => {
                let parts = self.take_marked()?;
                self.push(Value::Tuple(parts.into()))?;
            }
            0x85..=0x87 => {
                let parts = self.pop_many(usize::from(code - 0x84))?;
                self.push(Value::Tuple(parts.into()))?;
            }
            b'a' => {
                let item = self.pop_many(1)?;
                self.append(&item)?;
            }
            b'e' => {
                let items = self.take_marked()?;
                self.append(&items)?;
            }
            b's' => {
                let pair = self.pop_many(2)?;
                self.set(&pair)?;
            }
            b'u' => {
                let pairs = self.take_marked()?;
                self.set(&pairs)?;
            }
            b'q' | b'r' | b'h' | b'j' | 0x94 => self.remember(code)?,
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.global(module, name)?;
            }
            0x93 => {
                let names = self.pop_many(2)?;
                let [module, name] = [0, 1].map(|i| self.values.str(names[i]).map(String::from));
                let (module, name) = module.zip(name).ok_or("its pickle names something by no text")?;
                self.global(&module, &name)?;
            }
            b'R' | 0x81 => self.reduce(code)?,
            b'b' => self.build()?,
            b'Q' => {
                let id = self.pop()?;
                let storage = self.storage(id)?;
                self.push(Value::Storage(storage))?;
            }
            other => return Err(format!("its pickle has the opcode {other:#04x}, which no state dict needs")),
        }
        Ok(false)
    }

    fn number(&mut self, code: u8) -> Result<(), String> {
        let value = match code {
            b'J' => i32::from_le_bytes(self.array()?).into(),
            b'K' => self.array::<1>()?[0].into(),
            b'M' => u16::from_le_bytes(self.array()?).into(),
            _ => {
                let length = match code {
                    0x8a => u32::from(self.array::<1>()?[0]),
                    _ => u32::from_le_bytes(self.array()?),
                };
                let bytes = self.take(length.into())?;
                let sign = if bytes.last().is_some_and(|byte| byte & 0x80 != 0) { 0xff } else { 0 };
                let mut wide = [sign; 8];
                match wide.get_mut(..bytes.len()) {
                    Some(low) => low.copy_from_slice(bytes),
                    None => return self.push(Value::Long(bytes.into())),
                }
                i64::from_le_bytes(wide)
            }
        };
        self.push(Value::Int(value))
    }

    fn text(&mut self, code: u8) -> Result<(), String> {
        let length = match code {
            0x8c | b'U' | b'C' => self.array::<1>()?[0].into(),
            0x8d | 0x8e => u64::from_le_bytes(self.array()?),
            _ => u32::from_le_bytes(self.array()?).into(),
        };
        let bytes = self.take(length)?;
        let is_text = matches!(code, b'X' | 0x8c | 0x8d | b'T' | b'U');
        match std::str::from_utf8(bytes) {
            Ok(text) if is_text => self.push(Value::Str(text.into())),
            Err(_) if is_text => Err("its pickle has a text that is not UTF-8".into()),
            _ => self.push(Value::Other),
        }
    }

    fn remember(&mut self, code: u8) -> Result<(), String> {
        let slot = match code {
            b'q' | b'h' => self.array::<1>()?[0].into(),
            0x94 => self.memo.len() as u32,
            _ => u32::from_le_bytes(self.array()?),
        };
        if matches!(code, b'h' | b'j') {
            let known = self.memo.get(&slot).copied();
            self.stack.push(known.ok_or_else(|| format!("its pickle recalls {slot}, which was never kept"))?);
            return Ok(());
        }
        let top = *self.stack.last().ok_or("its pickle keeps a value where there is none")?;
        self.memo.insert(slot, top);
        Ok(())
    }

    fn global(&mut self, module: &str, name: &str) -> Result<(), String> {
        self.push(Value::Global(globals::find(module, name)?))
    }

    /// REDUCE and NEWOBJ: what a name on the list stands for, of a tuple of arguments.
    fn reduce(&mut self, code: u8) -> Result<(), String> {
        let parts = self.pop_many(2)?;
        let (Value::Global(global), Value::Tuple(arguments)) = (self.values.get(parts[0]), self.values.get(parts[1]))
        else {
            return Err("its pickle calls something that is no name".into());
        };
        let (global, arguments) = (*global, arguments.clone());
        if code == 0x81 && global != Global::Dict {
            return Err("its pickle makes an object that is no dictionary".into());
        }
        let made = globals::make(&mut self.values, global, &arguments)?;
        self.push(made)
    }

    /// BUILD: attributes of a dictionary or of a tensor, such as versions; no tensor needs them.
    fn build(&mut self) -> Result<(), String> {
        let state = self.pop()?;
        let target = *self.stack.last().ok_or("its pickle sets attributes of nothing")?;
        match (self.values.get(target), self.values.get(state)) {
            (Value::Dict(_) | Value::Tensor(_), Value::Dict(_) | Value::Tuple(_) | Value::None) => Ok(()),
            _ => Err("its pickle sets attributes of something that has none".into()),
        }
    }

    /// A persistent id: ("storage", class, key, place, elements[, (key, offset, elements) of a part]).
    fn storage(&self, id: Id) -> Result<Storage, String> {
        let fault = || "its pickle has a persistent id that is no storage".to_string();
        let Value::Tuple(parts) = self.values.get(id) else { return Err(fault()) };
        let [kind, class, key, _, elems, rest @ ..] = &**parts else { return Err(fault()) };
        let (Some("storage"), Value::Global(Global::Storage(dtype))) =
            (self.values.str(*kind), self.values.get(*class))
        else {
            return Err(fault());
        };
        let key = self.values.str(*key).ok_or_else(fault)?;
        if key.is_empty() || key.contains(['/', '\\', '\0']) {
            return Err(format!("the storage key `{}` is no name of a record", key.escape_debug()));
        }
        let count = |id: Id| self.values.int(id).and_then(|value| u64::try_from(value).ok());
        let mut storage =
            Storage { key: key.into(), dtype: *dtype, elems: count(*elems).ok_or_else(fault)?, before: 0 };
        if let [part, ..] = rest
            && let Value::Tuple(part) = self.values.get(*part)
        {
            let [_, offset, elems] = &**part else { return Err(fault()) };
            let (offset, elems) = (count(*offset).ok_or_else(fault)?, count(*elems).ok_or_else(fault)?);
            if offset.checked_add(elems).is_none_or(|end| end > storage.elems) {
                return Err(format!("a part of the storage `{key}` lies outside it"));
            }
            (storage.before, storage.elems) = (offset, elems);
        }
        Ok(storage)
    }

    fn append(&mut self, items: &[Id]) -> Result<(), String> {
        let target = *self.stack.last().ok_or("its pickle appends to nothing")?;
        match self.values.get_mut(target) {
            Value::List(list) => list.extend(items),
            _ => return Err("its pickle appends to something that is no list".into()),
        }
        Ok(())
    }

    fn set(&mut self, pairs: &[Id]) -> Result<(), String> {
        let target = *self.stack.last().ok_or("its pickle sets an item of nothing")?;
        let (pairs, rest) = pairs.as_chunks::<2>();
        match self.values.get_mut(target) {
            Value::Dict(dict) if rest.is_empty() => dict.extend(pairs.iter().map(|[key, value]| (*key, *value))),
            _ => return Err("its pickle sets items of something that is no dictionary".into()),
        }
        Ok(())
    }

    fn push(&mut self, value: Value) -> Result<(), String> {
        let id = self.values.add(value)?;
        self.stack.push(id);
        Ok(())
    }

    fn pop(&mut self) -> Result<Id, String> {
        Ok(self.pop_many(1)?[0])
    }

    fn pop_many(&mut self, count: usize) -> Result<Vec<Id>, String> {
        let floor = self.marks.last().copied().unwrap_or(0);
        match self.stack.len().checked_sub(count).filter(|at| *at >= floor) {
            Some(at) => Ok(self.stack.split_off(at)),
            None => Err("its pickle takes more from its stack than lies there".into()),
        }
    }

    /// What was pushed since the last mark.
    fn take_marked(&mut self) -> Result<Vec<Id>, String> {
        let mark = self.marks.pop().ok_or("its pickle has an end without a mark")?;
        Ok(self.stack.split_off(mark))
    }

    fn left(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn take(&mut self, count: u64) -> Result<&'a [u8], String> {
        let count = usize::try_from(count).ok().filter(|count| *count <= self.left());
        let count = count.ok_or_else(|| format!("its pickle is cut at byte {}", self.at))?;
        self.at += count;
        Ok(&self.bytes[self.at - count..self.at])
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], String> {
        let bytes = self.take(N as u64)?;
        bytes.try_into().map_err(|_| "its pickle is cut".into())
    }

    fn line(&mut self) -> Result<&'a str, String> {
        let rest = &self.bytes[self.at..];
        let end = rest.iter().position(|byte| *byte == b'\n').ok_or("its pickle is cut within a name")?;
        self.at += end + 1;
        std::str::from_utf8(&rest[..end]).map_err(|_| "its pickle has a name that is not UTF-8".into())
    }
}
