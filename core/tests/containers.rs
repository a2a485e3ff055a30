//! Containers beyond what the golden cases hold: settings in files of their own, wrapped state dicts, links.

use crit_core::files::{Checkpoint, Container, READERS};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures")
}

fn copy(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

fn edit(path: &Path, change: impl FnOnce(&mut Value)) {
    let mut value: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    change(&mut value);
    std::fs::write(path, value.to_string()).unwrap();
}

#[test]
fn settings_in_a_file_of_their_own_are_honoured() {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixtures().join("quant/modelopt-nvfp4"), folder.path());
    let name = "model.layers.0.mlp.down_proj.weight";
    let stated = Checkpoint::open(folder.path()).unwrap();
    let values = stated.tensor(name).unwrap().to_f32();
    edit(&folder.path().join("config.json"), |config| {
        config.as_object_mut().unwrap().remove("quantization_config");
    });
    let own = json!({"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "NVFP4", "group_size": 16}});
    std::fs::write(folder.path().join("hf_quant_config.json"), own.to_string()).unwrap();
    let alone = Checkpoint::open(folder.path()).unwrap();
    assert_eq!(alone.tensor(name).unwrap().stored_as(), "nvfp4");
    assert_eq!(alone.tensor(name).unwrap().to_f32(), values);
    let files = alone.manifest().unwrap().files.iter().map(|file| file.name.as_str()).collect::<Vec<_>>();
    assert!(files.contains(&"hf_quant_config.json"), "{files:?}");

    // GPTQ's older writers put theirs into quantize_config.json.
    let folder = tempfile::tempdir().unwrap();
    copy(&fixtures().join("quant/gptq-3bit-g128-sym"), folder.path());
    let values = Checkpoint::open(folder.path()).unwrap().tensor(name).unwrap().to_f32();
    let mut settings = Value::Null;
    edit(&folder.path().join("config.json"), |config| {
        settings = config.as_object_mut().unwrap().remove("quantization_config").unwrap();
        settings.as_object_mut().unwrap().remove("quant_method");
    });
    std::fs::write(folder.path().join("quantize_config.json"), settings.to_string()).unwrap();
    assert_eq!(Checkpoint::open(folder.path()).unwrap().tensor(name).unwrap().to_f32(), values);
}

#[test]
fn layouts_that_are_not_read_are_named() {
    let folder = tempfile::tempdir().unwrap();
    copy(&fixtures().join("quant/ct-mxfp4"), folder.path());
    for (key, format) in [("format", "marlin-24"), ("sparsity_config", "sparse-24-bitmask")] {
        edit(&folder.path().join("config.json"), |config| {
            let settings = config["quantization_config"].as_object_mut().unwrap();
            settings.insert(key.into(), if key == "format" { json!(format) } else { json!({"format": format}) });
        });
        let error = Checkpoint::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("not supported; supported: float-quantized"), "{error}");
        edit(&folder.path().join("config.json"), |config| {
            config["quantization_config"]["format"] = json!("mxfp4-pack-quantized");
        });
    }
    edit(&folder.path().join("config.json"), |config| config["quantization_config"]["quant_method"] = json!("own"));
    let error = Checkpoint::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("quantisation method `own` is not supported; supported: "), "{error}");
}

/// A pickle of protocol 2, opcode by opcode.
#[derive(Default)]
struct Pickle(Vec<u8>);

impl Pickle {
    fn raw(mut self, bytes: &[u8]) -> Self {
        self.0.extend(bytes);
        self
    }

    fn text(self, text: &str) -> Self {
        self.raw(b"X").raw(&(text.len() as u32).to_le_bytes()).raw(text.as_bytes())
    }

    fn global(self, module: &str, name: &str) -> Self {
        self.raw(format!("c{module}\n{name}\n").as_bytes())
    }

    /// A tensor of two rows of two numbers of a storage of four, saved with these strides from `offset` on.
    fn tensor(self, key: &str, offset: u8, strides: [u8; 2]) -> Self {
        self.global("torch._utils", "_rebuild_tensor_v2")
            .raw(b"((")
            .text("storage")
            .global("torch", "FloatStorage")
            .text(key)
            .text("cpu")
            .raw(b"K\x04tQ")
            .raw(&[b'K', offset])
            .raw(b"K\x02K\x02\x86")
            .raw(&[b'K', strides[0], b'K', strides[1], 0x86])
            .raw(b"\x89")
            .global("collections", "OrderedDict")
            .raw(b")RtR")
    }
}

/// An archive of stored members. Sums are left out: nothing reads them.
fn zip(members: &[(&str, &[u8])]) -> Vec<u8> {
    let (mut out, mut directory) = (Vec::new(), Vec::new());
    for (name, bytes) in members {
        let (at, size, len) = (out.len() as u32, bytes.len() as u32, name.len() as u16);
        let sizes = [&0u32.to_le_bytes()[..], &size.to_le_bytes(), &size.to_le_bytes(), &len.to_le_bytes(), &[0; 2]];
        let sizes = sizes.concat();
        out.extend([b"PK\x03\x04", &[0u8; 10][..], &sizes, name.as_bytes(), bytes].concat());
        let entry = [b"PK\x01\x02", &[0u8; 12][..], &sizes, &[0; 10], &at.to_le_bytes(), name.as_bytes()];
        directory.extend(entry.concat());
    }
    let (at, size, count) = (out.len() as u32, directory.len() as u32, members.len() as u16);
    out.extend(directory);
    let counts = [count.to_le_bytes(), count.to_le_bytes()].concat();
    out.extend([b"PK\x05\x06", &[0u8; 4][..], &counts, &size.to_le_bytes(), &at.to_le_bytes(), &[0; 2]].concat());
    out
}

#[test]
fn wrapped_state_dicts_give_their_tensors_under_plain_names() {
    let data: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let folder = tempfile::tempdir().unwrap();
    let open = |pickle: Pickle| {
        let file = folder.path().join("pytorch_model.bin");
        let members: [(&str, &[u8]); 3] =
            [("archive/data.pkl", &pickle.0), ("archive/byteorder", b"little"), ("archive/data/0", &data)];
        std::fs::write(&file, zip(&members)).unwrap();
        Checkpoint::open(&file)
    };
    let start = || Pickle::default().raw(b"\x80\x02}(");
    // {"epoch": 3, "model": {"module.a.weight": ..., "module.b.weight": its transpose}}
    let pickle = start().text("epoch").raw(b"K\x03").text("model").raw(b"}(").text("module.a.weight");
    let pickle = pickle.tensor("0", 0, [2, 1]).text("module.b.weight").tensor("0", 0, [1, 2]).raw(b"uu.");
    let checkpoint = open(pickle).unwrap();
    assert_eq!(checkpoint.container(), Container::PyTorch);
    assert_eq!(checkpoint.tensor("a.weight").unwrap().to_f32(), [1.0, 2.0, 3.0, 4.0]);
    assert_eq!(checkpoint.tensor("a.weight").unwrap().copied_bytes(), 0, "read where it lies");
    assert_eq!(checkpoint.tensor("b.weight").unwrap().to_f32(), [1.0, 3.0, 2.0, 4.0]);
    assert_eq!(checkpoint.tensor("b.weight").unwrap().copied_bytes(), 16);
    let refused = |pickle: Pickle| open(pickle).unwrap_err().to_string();
    assert!(refused(start().text("a").tensor("0", 1, [2, 1]).raw(b"u.")).contains("runs past its storage `0`"));
    assert!(refused(start().text("a").tensor("7", 0, [2, 1]).raw(b"u.")).contains("no member `archive/data/7`"));
    assert!(refused(start().text("a").global("os", "system").raw(b"u.")).contains("names `os.system`"));
    assert!(refused(start().text("a").raw(b"K\x01u.")).contains("no tensors"));
}

/// External data may be a link to where the model itself lies, as in the hub's cache, and to nowhere else.
#[cfg(unix)]
#[test]
fn links_of_external_data() {
    use std::os::unix::fs::symlink;
    let home = tempfile::tempdir().unwrap();
    let [blobs, snapshot, other] = ["blobs", "snapshot", "other"].map(|name| home.path().join(name));
    for folder in [&blobs, &snapshot, &other] {
        std::fs::create_dir(folder).unwrap();
    }
    let source = fixtures().join("malformed/onnx");
    std::fs::copy(source.join("ok_external.onnx"), blobs.join("m")).unwrap();
    std::fs::copy(source.join("weights.bin"), blobs.join("w")).unwrap();
    std::fs::copy(source.join("weights.bin"), other.join("w")).unwrap();
    symlink(blobs.join("m"), snapshot.join("model.onnx")).unwrap();
    symlink(blobs.join("w"), snapshot.join("weights.bin")).unwrap();
    assert!(Checkpoint::open(&snapshot).is_ok());
    std::fs::remove_file(snapshot.join("weights.bin")).unwrap();
    symlink(other.join("w"), snapshot.join("weights.bin")).unwrap();
    let error = Checkpoint::open(&snapshot).unwrap_err().to_string();
    assert!(error.contains("a link that leads out"), "{error}");
}

#[test]
fn readers_are_sorted_and_agree_with_the_files() {
    assert!(READERS.is_sorted_by_key(|reader| reader.name));
    for (name, folder, file) in [
        ("gguf", "gguf", "ok_min.gguf"),
        ("onnx", "onnx", "ok_min.onnx"),
        ("pytorch", "pickle", "ok_min.bin"),
        ("safetensors", "safetensors", "ok_min.safetensors"),
    ] {
        let path = fixtures().join("malformed").join(folder).join(file);
        let reader = READERS.iter().find(|reader| reader.name == name).unwrap();
        let tensors = reader.read(&path, std::fs::read(&path).unwrap()).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        assert_eq!(tensors.len(), checkpoint.tensors().len(), "{name}");
        for tensor in tensors {
            assert_eq!(tensor.to_f32(), checkpoint.tensor(tensor.name()).unwrap().to_f32(), "{name}");
        }
    }
}
