//! The arguments by which a command chooses its device, kernel pack and precision.

use clap::{Args, ValueEnum};
use lavalane_runtime::vulkan::{DeviceChoice, KvType, Pack, Precision};

/// Where and how exactly to compute.
#[derive(Args, Clone, Debug)]
pub struct DeviceArguments {
    /// The Vulkan device: an index of `lavalane devices`, or a part of its name
    #[arg(long, env = "LAVALANE_DEVICE")]
    pub device: Option<String>,
    /// The kernel pack, instead of the device's own
    #[arg(long, value_enum, env = "LAVALANE_PACK")]
    pub pack: Option<PackName>,
    /// Members of the device group: instances of a software device, one core each [default: one per core
    /// of a software device whose driver can share memory, otherwise 1]
    #[arg(long, env = "LAVALANE_MEMBERS")]
    pub members: Option<usize>,
    /// Keep activations in f32 (slower; also makes the KV cache f32 unless --kv-type says otherwise)
    #[arg(long)]
    pub precise: bool,
    /// The KV cache's element type
    #[arg(long, value_enum)]
    pub kv_type: Option<KvTypeName>,
}

/// A kernel pack's name.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum PackName {
    /// For software devices
    Cpu,
    /// For any device
    Subgroup,
    /// For devices with cooperative matrices
    Coopmat,
}

/// A KV element type's name.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum KvTypeName {
    /// IEEE float16
    F16,
    /// float32
    F32,
}

impl DeviceArguments {
    /// The device and pack.
    pub fn choice(&self) -> DeviceChoice {
        let pack = self.pack.map(|name| match name {
            PackName::Cpu => Pack::Cpu,
            PackName::Subgroup => Pack::Subgroup,
            PackName::Coopmat => Pack::Coopmat,
        });
        DeviceChoice { device: self.device.clone(), pack, members: self.members }
    }

    /// How exact activations are.
    pub fn precision(&self) -> Precision {
        if self.precise { Precision::Precise } else { Precision::Default }
    }

    /// The KV cache's element type.
    pub fn kv_type(&self) -> KvType {
        self.kv_type.map_or_else(|| self.precision().kv_type(), KvType::from)
    }
}

impl From<KvTypeName> for KvType {
    fn from(name: KvTypeName) -> Self {
        match name {
            KvTypeName::F16 => Self::F16,
            KvTypeName::F32 => Self::F32,
        }
    }
}
