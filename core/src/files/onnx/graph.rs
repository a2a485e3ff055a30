//! What of a graph matters for its weights: the initialisers, and the nodes that take them.

use super::wire::{Fields, Value, text};
use std::collections::BTreeMap;
use std::ops::Range;

/// Graphs within graphs, as branches hold them. Exported models have two or three.
const MAX_DEPTH: usize = 32;

/// A graph, its branches included.
#[derive(Debug, Default)]
pub(super) struct Graph {
    pub(super) initialisers: Vec<Initialiser>,
    pub(super) nodes: Vec<Node>,
}

/// A stored tensor.
#[derive(Debug, Default)]
pub(super) struct Initialiser {
    pub(super) name: String,
    /// As two's complement.
    pub(super) dims: Vec<u64>,
    pub(super) data_type: u64,
    pub(super) data: Data,
    pub(super) external: BTreeMap<String, String>,
    pub(super) is_external: bool,
}

/// Where the values of a tensor are within the model file.
#[derive(Debug, Default)]
pub(super) enum Data {
    #[default]
    None,
    /// In one run of bytes, as the type stores them.
    Raw(Range<usize>),
    /// As numbers of this many bytes each that hold one element.
    Numbers(Vec<u64>),
}

/// A node.
#[derive(Debug, Default)]
pub(super) struct Node {
    pub(super) name: String,
    pub(super) op: String,
    pub(super) inputs: Vec<String>,
    /// Attributes that are whole numbers.
    pub(super) ints: BTreeMap<String, i64>,
}

/// Reads the graph of the model in `file`.
pub(super) fn read(file: &[u8]) -> Result<Graph, String> {
    let mut graph = Graph::default();
    let mut there = false;
    let mut fields = Fields::new(file, 0..file.len());
    while let Some((number, value)) = fields.next()? {
        if number == 7 {
            graph.read(file, value.bytes("the graph")?, 0)?;
            there = true;
        }
    }
    if there { Ok(graph) } else { Err("it has no graph".into()) }
}

impl Graph {
    fn read(&mut self, file: &[u8], range: Range<usize>, depth: usize) -> Result<(), String> {
        if depth > MAX_DEPTH {
            return Err(format!("its graphs lie more than {MAX_DEPTH} deep in each other"));
        }
        let mut fields = Fields::new(file, range);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => {
                    let node = self.read_node(file, value.bytes("a node")?, depth)?;
                    self.nodes.push(node);
                }
                5 => self.initialisers.push(Initialiser::read(file, value.bytes("an initialiser")?)?),
                15 => return Err("it has sparse initialisers, which are not read".into()),
                _ => {}
            }
        }
        Ok(())
    }

    fn read_node(&mut self, file: &[u8], range: Range<usize>, depth: usize) -> Result<Node, String> {
        let mut node = Node::default();
        let mut fields = Fields::new(file, range);
        while let Some((number, value)) = fields.next()? {
            let string = |what: &str| Ok::<_, String>(text(file, value.clone().bytes(what)?, what)?.to_string());
            match number {
                1 => node.inputs.push(string("a node's input")?),
                3 => node.name = string("a node's name")?,
                4 => node.op = string("a node's type")?,
                5 => self.read_attribute(file, value.bytes("an attribute")?, depth, &mut node)?,
                _ => {}
            }
        }
        Ok(node)
    }

    fn read_attribute(
        &mut self,
        file: &[u8],
        range: Range<usize>,
        depth: usize,
        node: &mut Node,
    ) -> Result<(), String> {
        let (mut name, mut int) = (String::new(), None);
        let mut fields = Fields::new(file, range);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => name = text(file, value.bytes("an attribute's name")?, "an attribute's name")?.to_string(),
                3 => int = Some(value.number("an attribute")? as i64),
                6 | 11 => self.read(file, value.bytes("a branch")?, depth + 1)?,
                _ => {}
            }
        }
        node.ints.extend(int.map(|int| (name, int)));
        Ok(())
    }
}

impl Initialiser {
    fn read(file: &[u8], range: Range<usize>) -> Result<Self, String> {
        let mut out = Self::default();
        let mut fields = Fields::new(file, range);
        while let Some((number, value)) = fields.next()? {
            match number {
                1 => value.numbers(file, "a dimension", &mut out.dims)?,
                2 => out.data_type = value.number("a tensor's type")?,
                3 => return Err("it has a tensor in segments, which are not read".into()),
                // Numbers of fixed size, packed, lie as they would lie in raw data.
                4 | 10 => out.add_fixed(value, number)?,
                5 | 7 | 11 => out.add_numbers(file, value)?,
                8 => out.name = text(file, value.bytes("a tensor's name")?, "a tensor's name")?.to_string(),
                9 => out.set_raw(value.bytes("a tensor's data")?)?,
                13 => {
                    let (key, value) = entry(file, value.bytes("an external place")?)?;
                    out.external.insert(key, value);
                }
                14 => out.is_external = value.number("a tensor's place")? == 1,
                _ => {}
            }
        }
        Ok(out)
    }

    fn set_raw(&mut self, range: Range<usize>) -> Result<(), String> {
        match self.data {
            Data::None => self.data = Data::Raw(range),
            _ => return Err(format!("the tensor `{}` has its data twice", self.name)),
        }
        Ok(())
    }

    fn add_fixed(&mut self, value: Value, number: u64) -> Result<(), String> {
        match (value, number) {
            (Value::Bytes(range), _) => self.set_raw(range),
            (Value::Fixed(bits), _) => self.add_number(bits),
            (Value::Varint(_), _) => Err("a tensor's data are of the wrong wire type".into()),
        }
    }

    fn add_number(&mut self, number: u64) -> Result<(), String> {
        match &mut self.data {
            Data::Numbers(numbers) => numbers.push(number),
            Data::None => self.data = Data::Numbers(vec![number]),
            Data::Raw(_) => return Err(format!("the tensor `{}` has its data twice", self.name)),
        }
        Ok(())
    }

    fn add_numbers(&mut self, file: &[u8], value: Value) -> Result<(), String> {
        let mut numbers = Vec::new();
        value.numbers(file, "a tensor's data", &mut numbers)?;
        numbers.into_iter().try_for_each(|number| self.add_number(number))
    }
}

/// A pair of texts.
fn entry(file: &[u8], range: Range<usize>) -> Result<(String, String), String> {
    let (mut key, mut content) = (String::new(), String::new());
    let mut fields = Fields::new(file, range);
    while let Some((number, value)) = fields.next()? {
        match number {
            1 => key = text(file, value.bytes("a key")?, "a key")?.to_string(),
            2 => content = text(file, value.bytes("a value")?, "a value")?.to_string(),
            _ => {}
        }
    }
    Ok((key, content))
}
