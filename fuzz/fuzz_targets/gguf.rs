//! Fuzzes the reading of model files: the input is the file, which must be an error or a model, and in
//! neither case a panic or a large allocation.

#![no_main]

use lavalane_runtime::model::Model;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let path = std::env::temp_dir().join(format!("lavalane-fuzz-{}.gguf", std::process::id()));
    std::fs::write(&path, data).expect("the temporary folder can be written");
    if let Ok(model) = Model::open(&path) {
        let tensors = model.tensors();
        assert_eq!(model.data(&tensors.embedding).len(), tensors.embedding.bytes());
        model.embed(lavalane_runtime::ids::TokenId(0), &mut vec![0.0; model.description().hidden]);
    }
});
