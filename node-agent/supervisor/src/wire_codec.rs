//! How records are written and read: each field in the order of its declaration, little-endian.

use crate::step::Step;
use crate::wire::{
    Backend, Cause, EntryPhase, EntryState, Event, Exit, Key, MAGIC, RECORD_LEN, Request, Spawn, VERSION,
    WireError,
};

/// Writes fields one after another; the layouts below never exceed a record.
struct Writer {
    buf: [u8; RECORD_LEN],
    at: usize,
}

impl Writer {
    fn new(kind: u16) -> Writer {
        let mut w = Writer {
            buf: [0; RECORD_LEN],
            at: 0,
        };
        w.u32(MAGIC);
        w.bytes(&VERSION.to_le_bytes());
        w.bytes(&kind.to_le_bytes());
        w
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.buf[self.at..self.at + bytes.len()].copy_from_slice(bytes);
        self.at += bytes.len();
    }

    fn u8(&mut self, v: u8) {
        self.bytes(&[v]);
    }

    fn u32(&mut self, v: u32) {
        self.bytes(&v.to_le_bytes());
    }

    fn i32(&mut self, v: i32) {
        self.bytes(&v.to_le_bytes());
    }

    fn u64(&mut self, v: u64) {
        self.bytes(&v.to_le_bytes());
    }

    fn key(&mut self, key: &Key) {
        self.bytes(&key.uid);
        self.u32(key.attempt);
    }
}

/// Reads fields in the same order.
struct Reader<'a> {
    buf: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn open(buf: &'a [u8]) -> Result<(Reader<'a>, u16), WireError> {
        if buf.len() != RECORD_LEN {
            return Err(WireError::Length(buf.len()));
        }
        let mut r = Reader { buf, at: 0 };
        let magic = r.u32();
        if magic != MAGIC {
            return Err(WireError::Magic(magic));
        }
        let version = u16::from_le_bytes(r.array());
        if version != VERSION {
            return Err(WireError::Version(version));
        }
        let kind = u16::from_le_bytes(r.array());
        Ok((r, kind))
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        let mut out = [0u8; N];
        out.copy_from_slice(&self.buf[self.at..self.at + N]);
        self.at += N;
        out
    }

    fn u8(&mut self) -> u8 {
        let [byte] = self.array();
        byte
    }

    fn u32(&mut self) -> u32 {
        u32::from_le_bytes(self.array())
    }

    fn i32(&mut self) -> i32 {
        i32::from_le_bytes(self.array())
    }

    fn u64(&mut self) -> u64 {
        u64::from_le_bytes(self.array())
    }

    fn key(&mut self) -> Key {
        Key {
            uid: self.array(),
            attempt: self.u32(),
        }
    }

    fn cause(&mut self) -> Result<Cause, WireError> {
        Cause::from_code(self.u8()).ok_or(WireError::Field("cause"))
    }
}

impl Request {
    /// The record of this request.
    pub fn encode(&self) -> [u8; RECORD_LEN] {
        match self {
            Request::Hello { agent_pid } => {
                let mut w = Writer::new(1);
                w.u32(*agent_pid);
                w.buf
            }
            Request::Spawn(spawn) => {
                let mut w = Writer::new(2);
                w.key(&spawn.key);
                w.u32(spawn.uid);
                w.u32(spawn.gid);
                w.u64(spawn.deadline_ms);
                w.u32(spawn.grace_ms);
                w.u32(spawn.nofile);
                w.u64(spawn.store_max_bytes);
                w.u32(spawn.flags);
                w.buf
            }
            Request::Signal { key, signo } => {
                let mut w = Writer::new(3);
                w.key(key);
                w.u32(*signo);
                w.buf
            }
            Request::Kill { key } => {
                let mut w = Writer::new(4);
                w.key(key);
                w.buf
            }
            Request::SetDeadline { key, deadline_ms } => {
                let mut w = Writer::new(5);
                w.key(key);
                w.u64(*deadline_ms);
                w.buf
            }
            Request::Forget { key } => {
                let mut w = Writer::new(6);
                w.key(key);
                w.buf
            }
            Request::Heartbeat => Writer::new(7).buf,
        }
    }

    /// Reads one record.
    ///
    /// # Errors
    /// Says what about the record is not as expected.
    pub fn decode(buf: &[u8]) -> Result<Request, WireError> {
        let (mut r, kind) = Reader::open(buf)?;
        Ok(match kind {
            1 => Request::Hello { agent_pid: r.u32() },
            2 => Request::Spawn(Spawn {
                key: r.key(),
                uid: r.u32(),
                gid: r.u32(),
                deadline_ms: r.u64(),
                grace_ms: r.u32(),
                nofile: r.u32(),
                store_max_bytes: r.u64(),
                flags: r.u32(),
            }),
            3 => Request::Signal {
                key: r.key(),
                signo: r.u32(),
            },
            4 => Request::Kill { key: r.key() },
            5 => Request::SetDeadline {
                key: r.key(),
                deadline_ms: r.u64(),
            },
            6 => Request::Forget { key: r.key() },
            7 => Request::Heartbeat,
            other => return Err(WireError::Kind(other)),
        })
    }
}

fn write_state(w: &mut Writer, s: &EntryState) {
    w.key(&s.key);
    w.i32(s.pid);
    w.u8(s.phase as u8);
    w.i32(s.wait_status);
    w.u8(s.cause.code());
    w.u8(s.step.map_or(0, Step::code));
    w.i32(s.errno);
    w.u8(u8::from(s.emptied) | u8::from(s.drained) << 1 | u8::from(s.deadline_reached) << 2);
    w.u64(s.spawned_ms);
    w.u64(s.exited_ms);
    w.u64(s.emptied_ms);
}

fn read_state(r: &mut Reader<'_>) -> Result<EntryState, WireError> {
    let key = r.key();
    let pid = r.i32();
    let phase = match r.u8() {
        0 => EntryPhase::Starting,
        1 => EntryPhase::Running,
        2 => EntryPhase::Exited,
        3 => EntryPhase::Refused,
        _ => return Err(WireError::Field("phase")),
    };
    let wait_status = r.i32();
    let cause = r.cause()?;
    let step = match r.u8() {
        0 => None,
        code => Some(Step::from_code(code).ok_or(WireError::Field("step"))?),
    };
    let errno = r.i32();
    let bits = r.u8();
    Ok(EntryState {
        key,
        pid,
        phase,
        wait_status,
        cause,
        step,
        errno,
        emptied: bits & 1 != 0,
        drained: bits & 2 != 0,
        deadline_reached: bits & 4 != 0,
        spawned_ms: r.u64(),
        exited_ms: r.u64(),
        emptied_ms: r.u64(),
    })
}

fn at(kind: u16, key: &Key, boottime_ms: u64) -> [u8; RECORD_LEN] {
    let mut w = Writer::new(kind);
    w.key(key);
    w.u64(boottime_ms);
    w.buf
}

impl Event {
    /// The record of this event.
    pub fn encode(&self) -> [u8; RECORD_LEN] {
        match self {
            Event::HelloAck {
                epoch,
                count,
                backend,
            } => {
                let mut w = Writer::new(101);
                w.u32(*epoch);
                w.u32(*count);
                w.u8(matches!(backend, Backend::ProcessGroup).into());
                w.buf
            }
            Event::State(state) => {
                let mut w = Writer::new(102);
                write_state(&mut w, state);
                w.buf
            }
            Event::Spawned {
                key,
                pid,
                boottime_ms,
            } => {
                let mut w = Writer::new(103);
                w.key(key);
                w.i32(*pid);
                w.u64(*boottime_ms);
                w.buf
            }
            Event::Refused { key, step, errno } => {
                let mut w = Writer::new(104);
                w.key(key);
                w.u8(step.code());
                w.i32(*errno);
                w.buf
            }
            Event::DeadlineReached { key, boottime_ms } => at(105, key, *boottime_ms),
            Event::Exited { key, exit } => {
                let mut w = Writer::new(106);
                w.key(key);
                w.i32(exit.wait_status);
                w.u8(exit.cause.code());
                w.u64(exit.boottime_ms);
                w.u64(exit.user_us);
                w.u64(exit.system_us);
                w.u64(exit.max_rss_kib);
                w.buf
            }
            Event::Emptied { key, boottime_ms } => at(107, key, *boottime_ms),
            Event::Drained { key, boottime_ms } => at(108, key, *boottime_ms),
            Event::Unknown { key } => at(109, key, 0),
            Event::Heartbeat { boottime_ms } => at(110, &Key::default(), *boottime_ms),
        }
    }

    /// Reads one record.
    ///
    /// # Errors
    /// Says what about the record is not as expected.
    pub fn decode(buf: &[u8]) -> Result<Event, WireError> {
        let (mut r, kind) = Reader::open(buf)?;
        Ok(match kind {
            101 => Event::HelloAck {
                epoch: r.u32(),
                count: r.u32(),
                backend: if r.u8() == 0 {
                    Backend::CgroupV2
                } else {
                    Backend::ProcessGroup
                },
            },
            102 => Event::State(read_state(&mut r)?),
            103 => Event::Spawned {
                key: r.key(),
                pid: r.i32(),
                boottime_ms: r.u64(),
            },
            104 => Event::Refused {
                key: r.key(),
                step: Step::from_code(r.u8()).ok_or(WireError::Field("step"))?,
                errno: r.i32(),
            },
            105 => Event::DeadlineReached {
                key: r.key(),
                boottime_ms: r.u64(),
            },
            106 => Event::Exited {
                key: r.key(),
                exit: Exit {
                    wait_status: r.i32(),
                    cause: r.cause()?,
                    boottime_ms: r.u64(),
                    user_us: r.u64(),
                    system_us: r.u64(),
                    max_rss_kib: r.u64(),
                },
            },
            107 => Event::Emptied {
                key: r.key(),
                boottime_ms: r.u64(),
            },
            108 => Event::Drained {
                key: r.key(),
                boottime_ms: r.u64(),
            },
            109 => Event::Unknown { key: r.key() },
            110 => {
                r.key();
                Event::Heartbeat { boottime_ms: r.u64() }
            }
            other => return Err(WireError::Kind(other)),
        })
    }
}
