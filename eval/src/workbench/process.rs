//! A kernel written in C, compiled with the machine's compiler and run in a process of its own.
//!
//! The kernel is one function, `void kernel(const long *shape, const float *const *inputs, float *output)`. It is compiled
//! together with a small harness that reads shape and inputs from its standard input, runs it when told to, and writes the
//! output back. The evaluator's clock runs from telling it to run to its word that it has; what the pipes take is measured
//! with a run of nothing and taken off. So the kernel has neither the clock nor the evaluator's memory.

use super::Kernel;
use crate::error::{EvalError, file_error};
use std::io::{BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The harness.
const HARNESS: &str = include_str!("harness.c");

/// Yardsticks in C that load a library of the machine, by name.
const LIBRARIES: [(&str, &str); 2] = [("openblas", include_str!("openblas.c")), ("onednn", include_str!("onednn.c"))];

/// A kernel in a process.
#[derive(Debug)]
pub struct ProcessKernel {
    name: String,
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    loaded: Option<u64>,
}

impl ProcessKernel {
    /// Compiles the C file `source` into `dir` and starts it.
    ///
    /// # Errors
    /// There is no compiler, it refuses the source, or the program does not start.
    pub fn compile(name: &str, source: &Path, dir: &Path) -> Result<Self, EvalError> {
        let program = build(name, source, dir)?;
        Self::start(name, &program)
    }

    /// The yardstick `library` for products, if the machine has it.
    ///
    /// # Errors
    /// There is no compiler, or no such library here; the error says what to install.
    pub fn library(library: &str, dir: &Path) -> Result<Self, EvalError> {
        let Some((_, text)) = LIBRARIES.iter().find(|(name, _)| *name == library) else {
            return Err(request(format!("there is no yardstick `{library}`"), "openblas or onednn"));
        };
        let source = dir.join(format!("{library}.c"));
        std::fs::write(&source, text).map_err(file_error(&source))?;
        let mut kernel = Self::compile(library, &source, dir)?;
        let mut output = [0.0f32];
        // A library that is not there shows at the first call, not before.
        match kernel.run(&[1, 1, 1], &[vec![2.0], vec![3.0]], &mut output) {
            Ok(()) if output == [6.0] => Ok(kernel),
            _ => Err(EvalError::Machine {
                what: format!("{library} is not on this machine, or cannot be used"),
                hint: match library {
                    "openblas" => "install libopenblas0 (Debian) or put libopenblas.so.0 on the library path".into(),
                    _ => "install libdnnl2 (Debian) or put libdnnl.so.3 on the library path".into(),
                },
            }),
        }
    }

    fn start(name: &str, program: &Path) -> Result<Self, EvalError> {
        let mut command = Command::new(program);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(file_error(program))?;
        let (to, from) = (child.stdin.take(), child.stdout.take());
        let from = from.ok_or_else(|| request("the kernel's process has no output".into(), "run it again"))?;
        Ok(Self { name: name.into(), child, to, from: BufReader::new(from), loaded: None })
    }

    fn say(&mut self, bytes: &[u8]) -> Result<(), EvalError> {
        let told = self.to.as_mut().map_or(Err(std::io::ErrorKind::BrokenPipe.into()), |to| to.write_all(bytes));
        told.map_err(|_| self.ended())
    }

    fn hear(&mut self, bytes: &mut [u8]) -> Result<(), EvalError> {
        self.from.read_exact(bytes).map_err(|_| self.ended())
    }

    fn ended(&mut self) -> EvalError {
        let status = self.child.wait().map_or_else(|error| error.to_string(), |status| status.to_string());
        EvalError::Machine {
            what: format!("the kernel `{}` ended by itself ({status})", self.name),
            hint: "run its program under a debugger or with -fsanitize=address".into(),
        }
    }

    /// Sends shape and inputs, if they are not those the process has.
    ///
    /// # Errors
    /// The process ended.
    pub fn load(&mut self, shape: &[usize], inputs: &[Vec<f32>], output_len: usize) -> Result<(), EvalError> {
        let mut hash = shape.iter().fold(output_len as u64, |hash, n| hash.wrapping_mul(31) ^ *n as u64);
        for input in inputs {
            hash = hash.rotate_left(7) ^ super::check::bits(input);
        }
        if self.loaded == Some(hash) {
            return Ok(());
        }
        let mut message = vec![b'L'];
        let mut word = |n: usize| message.extend((n as u64).to_le_bytes());
        word(shape.len());
        shape.iter().for_each(|n| word(*n));
        word(output_len);
        word(inputs.len());
        inputs.iter().for_each(|input| word(input.len()));
        for input in inputs {
            message.extend(input.iter().flat_map(|x| x.to_le_bytes()));
        }
        self.say(&message)?;
        self.heard(b'l')?;
        self.loaded = Some(hash);
        Ok(())
    }

    /// Runs the kernel on what is loaded; `false` runs nothing, for what the way there and back takes.
    ///
    /// # Errors
    /// The process ended.
    pub fn go(&mut self, really: bool) -> Result<(), EvalError> {
        self.say(if really { b"R" } else { b"N" })?;
        self.heard(if really { b'r' } else { b'n' })
    }

    /// Fetches the output.
    ///
    /// # Errors
    /// The process ended.
    pub fn fetch(&mut self, output: &mut [f32]) -> Result<(), EvalError> {
        self.say(b"O")?;
        let mut bytes = vec![0; output.len() * 4];
        self.hear(&mut bytes)?;
        for (value, bytes) in output.iter_mut().zip(bytes.chunks_exact(4)) {
            *value = f32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        }
        Ok(())
    }

    fn heard(&mut self, wanted: u8) -> Result<(), EvalError> {
        let mut byte = [0];
        self.hear(&mut byte)?;
        match byte[0] == wanted {
            true => Ok(()),
            false => Err(request("the kernel's process answers out of turn".into(), "run it again")),
        }
    }
}

impl Kernel for ProcessKernel {
    fn name(&self) -> &str {
        &self.name
    }

    fn run(&mut self, shape: &[usize], inputs: &[Vec<f32>], output: &mut [f32]) -> Result<(), EvalError> {
        self.load(shape, inputs, output.len())?;
        self.go(true)?;
        self.fetch(output)
    }

    fn prepare(&mut self, shape: &[usize], inputs: &[Vec<f32>], output_len: usize) -> Result<(), EvalError> {
        self.load(shape, inputs, output_len)
    }

    fn timed(
        &mut self,
        _: &[usize],
        _: &[Vec<f32>],
        output: &mut [f32],
        clock: &dyn crate::clock::Clock,
    ) -> Result<f64, EvalError> {
        let mut way = f64::INFINITY;
        for _ in 0..3 {
            let start = clock.now_s();
            self.go(false)?;
            way = way.min(clock.now_s() - start);
        }
        let start = clock.now_s();
        self.go(true)?;
        let seconds = clock.now_s() - start;
        self.fetch(output)?;
        Ok((seconds - way).max(1e-9))
    }
}

impl Drop for ProcessKernel {
    fn drop(&mut self) {
        // The end of its input ends it; a kernel that hangs is ended.
        self.to = None;
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn build(name: &str, source: &Path, dir: &Path) -> Result<PathBuf, EvalError> {
    let (harness, program) = (dir.join("harness.c"), dir.join(format!("{name}.kernel")));
    std::fs::write(&harness, HARNESS).map_err(file_error(&harness))?;
    let mut command = Command::new(std::env::var("CC").unwrap_or_else(|_| "cc".into()));
    command.args(["-O3", "-march=native", "-std=gnu11", "-o"]).arg(&program).arg(source).arg(&harness);
    let done = command.args(["-lm", "-ldl", "-lpthread"]).stdin(Stdio::null()).output();
    let done = done.map_err(|error| EvalError::Machine {
        what: format!("no C compiler runs here: {error}"),
        hint: "install cc, or name one in the environment variable CC".into(),
    })?;
    if !done.status.success() {
        let said = String::from_utf8_lossy(&done.stderr);
        let said: String = said.lines().take(12).collect::<Vec<_>>().join("\n");
        return Err(request(format!("{} does not compile:\n{said}", source.display()), "mend it and check again"));
    }
    Ok(program)
}

fn request(what: String, hint: &str) -> EvalError {
    EvalError::Request { what, hint: hint.into() }
}
