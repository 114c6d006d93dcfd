//! Loopback ports, chosen once and kept in a file so that a restarted part is found where it was.

use std::collections::BTreeMap;
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

/// Named loopback ports, stored as JSON.
#[derive(Debug)]
pub struct Ports {
    file: PathBuf,
    by_name: BTreeMap<String, u16>,
}

impl Ports {
    /// Reads `file`; a missing file is an empty set.
    pub fn load(file: &Path) -> Result<Self> {
        let by_name = match fs::read(file) {
            Ok(bytes) => serde_json::from_slice(&bytes)
                .with_context(|| format!("parse ports in {}", file.display()))?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => BTreeMap::new(),
            Err(error) => return Err(error).with_context(|| format!("read ports from {}", file.display())),
        };
        Ok(Self {
            file: file.to_path_buf(),
            by_name,
        })
    }

    /// True while no port has been chosen.
    pub fn is_empty(&self) -> bool {
        self.by_name.is_empty()
    }

    /// The port of `name`, if it was chosen before.
    pub fn get(&self, name: &str) -> Option<u16> {
        self.by_name.get(name).copied()
    }

    /// The ports of `names`, in their order; those without one get a port that is free now and
    /// differs from all others here. Another program may take it before it is used: the caller sees
    /// its part fail and may choose again after [`Ports::forget`].
    pub fn choose<const N: usize>(&mut self, names: [&str; N]) -> Result<[u16; N]> {
        // All listeners stay open until the end, so that the kernel gives no port twice.
        let mut held = Vec::new();
        let mut chosen = [0; N];
        for (slot, name) in chosen.iter_mut().zip(names) {
            *slot = match self.by_name.get(name) {
                Some(port) => *port,
                None => self.add(name, &mut held)?,
            };
        }
        self.store()?;
        Ok(chosen)
    }

    fn add(&mut self, name: &str, held: &mut Vec<TcpListener>) -> Result<u16> {
        loop {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
                .with_context(|| format!("bind a free loopback port for {name}"))?;
            let port = listener
                .local_addr()
                .context("read the address of a bound listener")?
                .port();
            held.push(listener);
            if !self.by_name.values().any(|taken| *taken == port) {
                self.by_name.insert(name.to_owned(), port);
                return Ok(port);
            }
        }
    }

    /// Forgets every port, in memory and in the file.
    pub fn forget(&mut self) -> Result<()> {
        self.by_name.clear();
        self.store()
    }

    fn store(&self) -> Result<()> {
        let text = serde_json::to_vec_pretty(&self.by_name)?;
        fs::write(&self.file, text).with_context(|| format!("write ports to {}", self.file.display()))
    }
}
