//! Compiles the kernels of cooperative matrices to the SPIR-V that is committed beside them.
//!
//!     lavalane-shader-compiler SOURCE TARGET
//!
//! `SOURCE` is a GLSL file, whose includes lie in its folder. `TARGET` is the file to write; beside it, ending in
//! `.fingerprint`, goes that of what it was made from and of itself.

#[path = "../../src/fingerprint.rs"]
mod fingerprint;

use glslang::include::{IncludeHandler, IncludeResult, IncludeType};
use glslang::{
    Compiler, CompilerOptions, ShaderInput, ShaderSource, ShaderStage, SourceLanguage, SpirvVersion, Target,
    VulkanVersion,
};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [source, target] = arguments.as_slice() else {
        eprintln!("usage: lavalane-shader-compiler SOURCE TARGET");
        return ExitCode::from(2);
    };
    match compile(Path::new(source), Path::new(target)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {source} to {target}: {error}");
            ExitCode::FAILURE
        }
    }
}

fn compile(path: &Path, target: &Path) -> Result<(), Box<dyn Error>> {
    let text = std::fs::read_to_string(path)?;
    let source = ShaderSource::from(text.as_str());
    let options = CompilerOptions {
        source_language: SourceLanguage::GLSL,
        target: Target::Vulkan { version: VulkanVersion::Vulkan1_3, spirv_version: SpirvVersion::SPIRV1_6 },
        ..CompilerOptions::default()
    };
    let folder = path.parent().unwrap_or(Path::new(".")).to_owned();
    let mut includes = Includes { folder, texts: Vec::new() };
    let defines: Option<&[(&str, Option<&str>)]> = None;
    let input = ShaderInput::new(&source, ShaderStage::Compute, &options, defines, Some(&mut includes))?;
    let compiler = Compiler::acquire().ok_or("the compiler does not start")?;
    let words = compiler.create_shader(input)?.compile()?;
    let bytes: Vec<u8> = words.into_iter().flat_map(u32::to_le_bytes).collect();
    let sources: Vec<&str> = std::iter::once(&text).chain(&includes.texts).map(String::as_str).collect();
    let fingerprint = fingerprint::fingerprint(&sources, &bytes);
    std::fs::write(target, bytes)?;
    std::fs::write(target.with_extension("fingerprint"), format!("{fingerprint:016x}\n"))?;
    Ok(())
}

/// Where included files lie, and the text of those that were included.
struct Includes {
    folder: PathBuf,
    texts: Vec<String>,
}

impl IncludeHandler for Includes {
    fn include(
        &mut self,
        _kind: IncludeType,
        name: &str,
        _from: &str,
        _depth: usize,
    ) -> Option<IncludeResult> {
        let data = std::fs::read_to_string(self.folder.join(name)).ok()?;
        self.texts.push(data.clone());
        Some(IncludeResult { name: name.to_owned(), data })
    }
}
