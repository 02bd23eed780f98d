//! Kernels that need a newer compiler of GLSL than the build has: their SPIR-V is committed, and these tests hold it to
//! their sources. `make coopmat-kernels` compiles them anew.

use crate::fingerprint::fingerprint;

/// A kernel that was compiled before the build.
struct Compiled {
    name: &'static str,
    code: &'static [u8],
    /// Its GLSL file and what that includes.
    sources: &'static [&'static str],
    /// The fingerprint of its sources and its code when it was last compiled.
    fingerprint: &'static str,
}

const COMPILED: &[Compiled] = &[Compiled {
    name: "matmul_coopmat",
    code: include_bytes!("compiled/matmul_coopmat.spv"),
    sources: &[
        include_str!("kernels/matmul_coopmat.comp"),
        include_str!("kernels/activations.glsl"),
        include_str!("kernels/weights.glsl"),
    ],
    fingerprint: include_str!("compiled/matmul_coopmat.fingerprint"),
}];

/// The crate that compiles them, from this crate's folder, where it was built.
const COMPILER: &str = "compiler/target/release/lavalane-shader-compiler";

#[test]
fn neither_sources_nor_code_have_changed_since_they_were_compiled() {
    for kernel in COMPILED {
        let found = format!("{:016x}\n", fingerprint(kernel.sources, kernel.code));
        let name = kernel.name;
        assert_eq!(
            kernel.fingerprint, found,
            "{name} is not what its sources give: run `make coopmat-kernels`"
        );
    }
}

#[test]
fn the_committed_code_is_what_the_pinned_compiler_makes_of_the_sources() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let compiler = folder.join(COMPILER);
    if !compiler.is_file() {
        println!("skipped: the compiler is not built; `make coopmat-kernels` builds it");
        return;
    }
    for kernel in COMPILED {
        let target = std::env::temp_dir().join(format!("{}-{}.spv", kernel.name, std::process::id()));
        let source = folder.join(format!("src/kernels/{}.comp", kernel.name));
        let status = std::process::Command::new(&compiler).arg(source).arg(&target).status();
        assert!(status.expect("the compiler starts").success(), "{} does not compile", kernel.name);
        let made = std::fs::read(&target).expect("the compiler wrote it");
        for file in [target.with_extension("fingerprint"), target] {
            std::fs::remove_file(file).expect("it can be removed");
        }
        assert!(made == kernel.code, "{} is not what its source gives", kernel.name);
    }
}
