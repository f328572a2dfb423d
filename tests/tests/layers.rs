//! The layers of `engine/src` (docs/architecture.md, "Modules"): who may name whom, and that the
//! layers 0-3 have no clock, no I/O and no randomness of their own.
//!
//! Every path of every source file is read, in `use`, in code and in macros; `#[cfg(test)]` parts
//! are not.

use proc_macro2::{TokenStream, TokenTree};
use std::collections::HashSet;
use std::path::{Path, PathBuf};
use syn::visit::{self, Visit};

/// Top-level modules and their layers. A module names only modules of lower layers: inside a
/// layer nothing sideways. Tens are the layers of the table; `link` and `snapshot` describe what
/// the layers above say to each other in terms of `frames`, so they lie above it.
const LAYERS: &[(&str, u32)] = &[
    ("ids", 0),
    ("limits", 0),
    ("metrics", 0),
    ("log_limit", 1),
    ("addr", 10),
    ("frames", 10),
    ("json", 10),
    ("link", 11),
    ("snapshot", 11),
    ("emqp", 20),
    ("zmtp", 20),
    ("dial", 25),
    ("job", 25),
    ("broker", 30),
    ("ring", 30),
    ("admin_api", 40),
    ("io", 40),
    ("runtime", 50),
    ("settings", 50),
    ("daemon", 55),
    ("server", 60),
    ("cli", 61),
    ("client", 60),
    ("jobmanager", 60),
    ("pubsub", 60),
    ("scheduler", 60),
];

/// Arrows that go downwards and are still wrong.
const NEVER: &[(&str, &str)] = &[
    ("io", "broker"),
    ("admin_api", "broker"),
    ("runtime", "broker"),
    ("settings", "broker"),
    ("daemon", "broker"),
    ("cli", "broker"),
    ("client", "broker"),
    ("jobmanager", "broker"),
    ("pubsub", "broker"),
    ("scheduler", "broker"),
];

/// The highest layer that must not touch the world.
const PURE_LAYER_MAX: u32 = 30;

/// State machines of components: the same holds for them, and they know nothing of the shell.
const PURE: &[&str] = &[
    "client::core",
    "pubsub::state",
    "scheduler::cron",
    "scheduler::identity",
    "scheduler::ledger",
    "scheduler::node",
    "scheduler::record",
    "scheduler::schedule",
    "scheduler::session",
    "scheduler::timetable",
    "scheduler::zone",
];

/// What touches the world. An entry forbids the path and everything below it.
const WORLD: &[&str] = &[
    "std::env",
    "std::fs",
    "std::net::TcpListener",
    "std::net::TcpStream",
    "std::net::UdpSocket",
    "std::os",
    "std::process",
    "std::thread",
    "std::time::Instant",
    "std::time::SystemTime",
    "std::io::stdin",
    "std::io::stdout",
    "std::io::stderr",
    "std::hash::RandomState",
    "std::collections::hash_map::RandomState",
    "core_affinity",
    "getrandom",
    "libc",
    "mio",
    "rand",
    "signal_hook",
    "socket2",
    "uuid",
    // With hashers that seed themselves; `with_hasher` takes an injected one.
    "RandomState::new",
    "RandomState::default",
    "HashMap::new",
    "HashMap::with_capacity",
    "HashSet::new",
    "HashSet::with_capacity",
];

/// Macros that print.
const PRINTING: &[&str] = &["print", "println", "eprint", "eprintln", "dbg"];

/// The doorbell of `ring` puts threads to sleep and wakes them: that is what it is for.
const ALLOWED: &[(&str, &str)] = &[("ring", "std::thread")];

#[test]
fn every_arrow_points_downwards() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/src");
    let mut found = Vec::new();
    let mut files = 0;
    for (file, module) in modules(&src) {
        let text = std::fs::read_to_string(&file).expect("a readable source file");
        let shown = file
            .strip_prefix(&src)
            .expect("a file below src")
            .display()
            .to_string();
        files += 1;
        found.extend(
            problems(&module, &text)
                .into_iter()
                .map(|p| format!("{shown}: {p}")),
        );
    }
    assert!(files >= 10, "only {files} files found in {}", src.display());
    found.sort();
    found.dedup();
    assert!(
        found.is_empty(),
        "against the layers:\n{}",
        found.join("\n")
    );
}

#[test]
fn every_module_has_a_layer() {
    let src = Path::new(env!("CARGO_MANIFEST_DIR")).join("../engine/src");
    let unknown: HashSet<_> = modules(&src)
        .into_iter()
        .filter_map(|(_, module)| module.into_iter().next())
        .filter(|module| layer(module).is_none())
        .collect();
    assert!(unknown.is_empty(), "no layer for {unknown:?}");
}

/// Source files and the path of the module in each; without binaries, `lib.rs` and test modules.
fn modules(src: &Path) -> Vec<(PathBuf, Vec<String>)> {
    let mut all = Vec::new();
    let mut tests = HashSet::new();
    walk(src, &mut Vec::new(), &mut all);
    for (file, module) in &all {
        let text = std::fs::read_to_string(file).expect("a readable source file");
        for item in parse(&text).items {
            if let syn::Item::Mod(item) = item
                && item.content.is_none()
                && is_test(&item.attrs)
            {
                let mut path = module.clone();
                path.push(item.ident.to_string());
                tests.insert(path);
            }
        }
    }
    all.retain(|(_, module)| !module.is_empty() && !tests.iter().any(|t| module.starts_with(t)));
    all
}

fn walk(dir: &Path, module: &mut Vec<String>, all: &mut Vec<(PathBuf, Vec<String>)>) {
    for entry in std::fs::read_dir(dir).expect("a readable directory") {
        let path = entry.expect("a readable entry").path();
        let stem = path
            .file_stem()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if path.is_dir() {
            if !(module.is_empty() && stem == "bin") {
                module.push(stem);
                walk(&path, module, all);
                module.pop();
            }
        } else if path.extension().is_some_and(|ext| ext == "rs") {
            let mut own = module.clone();
            if stem != "mod" && stem != "lib" {
                own.push(stem);
            }
            all.push((path, own));
        }
    }
}

fn layer(module: &str) -> Option<u32> {
    LAYERS
        .iter()
        .find(|(name, _)| *name == module)
        .map(|(_, layer)| *layer)
}

fn parse(text: &str) -> syn::File {
    syn::parse_file(text).expect("source that compiles")
}

/// What is wrong in the source of `module`.
fn problems(module: &[String], text: &str) -> Vec<String> {
    let mut reader = Reader {
        module: module.to_vec(),
        found: Vec::new(),
    };
    reader.visit_file(&parse(text));
    reader.found
}

/// Whether attributes say `#[cfg(test)]` or `#[test]`.
fn is_test(attrs: &[syn::Attribute]) -> bool {
    attrs.iter().any(|attr| match &attr.meta {
        syn::Meta::List(list) if list.path.is_ident("cfg") => {
            let text = list.tokens.to_string();
            text == "test" || text.starts_with("all (test") || text.starts_with("any (test")
        }
        meta => meta.path().is_ident("test"),
    })
}

struct Reader {
    /// Where the reader is; inline modules included.
    module: Vec<String>,
    found: Vec<String>,
}

impl Reader {
    /// True inside one of the [`PURE`] modules.
    fn is_pure(&self) -> bool {
        let module = self.module.join("::");
        PURE.iter().any(|pure| {
            module
                .strip_prefix(pure)
                .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
        })
    }

    /// Judges one path as written.
    fn path(&mut self, segments: &[String]) {
        let Some(top) = self.module.first().cloned() else {
            return;
        };
        let own = layer(&top).unwrap_or(u32::MAX);
        if let Some(named) = self.resolve(segments) {
            let Some(theirs) = layer(&named) else { return };
            let never = NEVER.contains(&(top.as_str(), named.as_str()))
                || (self.is_pure() && named != top && theirs > PURE_LAYER_MAX);
            if named != top && (theirs >= own || never) {
                self.found.push(format!(
                    "{top} (layer {own}) names {named} (layer {theirs})"
                ));
            }
            return;
        }
        if own > PURE_LAYER_MAX && !self.is_pure() {
            return;
        }
        let text = segments.join("::");
        let below = |path: &str, above: &str| {
            path == above
                || path
                    .strip_prefix(above)
                    .is_some_and(|rest| rest.starts_with("::"))
        };
        for world in WORLD {
            let hit = below(&text, world)
                // `use std::{fs, time}` and then `time::Instant`.
                || (world.starts_with("std::") && below(world, &text) && text != "std")
                // `HashMap::new`, under whatever path.
                || (world.as_bytes()[0].is_ascii_uppercase() && text.ends_with(world));
            let allowed = ALLOWED.iter().any(|(m, path)| *m == top && path == world);
            // The parents of some of them have harmless parts, too: only these are meant.
            let harmless = [
                "std::io",
                "std::net",
                "std::time",
                "std::hash",
                "std::collections",
            ]
            .contains(&text.as_str())
                || text == "std::collections::hash_map";
            if hit && !allowed && !harmless {
                self.found
                    .push(format!("{top} (layer {own}) touches the world: {text}"));
                return;
            }
        }
    }

    /// The top-level module of this crate that a path leads to.
    fn resolve(&self, segments: &[String]) -> Option<String> {
        let ups = segments.iter().take_while(|s| *s == "super").count();
        match segments.first()?.as_str() {
            "crate" => segments.get(1).cloned(),
            // `super` out of a top-level module is the crate itself.
            "super" if ups >= self.module.len() => segments.get(ups).cloned(),
            "super" | "self" => self.module.first().cloned(),
            _ => None,
        }
    }

    fn tree(&mut self, tree: &syn::UseTree, before: &mut Vec<String>) {
        match tree {
            syn::UseTree::Path(path) => {
                before.push(path.ident.to_string());
                self.tree(&path.tree, before);
                before.pop();
            }
            syn::UseTree::Group(group) => {
                for tree in &group.items {
                    self.tree(tree, before);
                }
            }
            syn::UseTree::Name(syn::UseName { ident })
            | syn::UseTree::Rename(syn::UseRename { ident, .. }) => {
                let mut path = before.clone();
                if ident != "self" {
                    path.push(ident.to_string());
                }
                self.path(&path);
            }
            syn::UseTree::Glob(_) => self.path(&before.clone()),
        }
    }

    /// Paths in the tokens of a macro.
    fn tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        self.path(&std::mem::take(&mut path));
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    self.path(&std::mem::take(&mut path));
                    self.tokens(group.stream());
                    colons = 0;
                }
                _ => {
                    self.path(&std::mem::take(&mut path));
                    colons = 0;
                }
            }
        }
        self.path(&path);
    }
}

impl<'a> Visit<'a> for Reader {
    fn visit_item(&mut self, item: &'a syn::Item) {
        use syn::Item;
        let attrs = match item {
            Item::Const(i) => &i.attrs,
            Item::Enum(i) => &i.attrs,
            Item::Fn(i) => &i.attrs,
            Item::Impl(i) => &i.attrs,
            Item::Macro(i) => &i.attrs,
            Item::Mod(i) => &i.attrs,
            Item::Static(i) => &i.attrs,
            Item::Struct(i) => &i.attrs,
            Item::Trait(i) => &i.attrs,
            Item::Type(i) => &i.attrs,
            Item::Use(i) => &i.attrs,
            _ => return visit::visit_item(self, item),
        };
        if !is_test(attrs) {
            visit::visit_item(self, item);
        }
    }

    fn visit_impl_item_fn(&mut self, item: &'a syn::ImplItemFn) {
        if !is_test(&item.attrs) {
            visit::visit_impl_item_fn(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'a syn::ItemMod) {
        self.module.push(item.ident.to_string());
        visit::visit_item_mod(self, item);
        self.module.pop();
    }

    fn visit_item_use(&mut self, item: &'a syn::ItemUse) {
        self.tree(&item.tree, &mut Vec::new());
    }

    fn visit_path(&mut self, path: &'a syn::Path) {
        let segments: Vec<_> = path.segments.iter().map(|s| s.ident.to_string()).collect();
        self.path(&segments);
        visit::visit_path(self, path);
    }

    fn visit_macro(&mut self, call: &'a syn::Macro) {
        let name = call
            .path
            .segments
            .last()
            .map(|s| s.ident.to_string())
            .unwrap_or_default();
        let own = self
            .module
            .first()
            .and_then(|top| layer(top))
            .unwrap_or(u32::MAX);
        if own <= PURE_LAYER_MAX && PRINTING.contains(&name.as_str()) {
            self.found.push(format!("layer {own} prints: {name}!"));
        }
        self.visit_path(&call.path);
        self.tokens(call.tokens.clone());
    }
}

#[test]
fn the_reader_sees_what_it_should() {
    let check = |module: &str, text: &str| {
        let module: Vec<_> = module.split("::").map(str::to_owned).collect();
        problems(&module, text).len()
    };
    // Upwards, sideways, and never.
    assert_eq!(check("zmtp", "use crate::io::X;"), 1);
    assert_eq!(
        check("zmtp::peer", "fn f() { let _ = crate::emqp::f(); }"),
        1
    );
    assert_eq!(check("io", "use crate::{broker::Broker, zmtp};"), 1);
    assert_eq!(check("broker", "use super::server;"), 1);
    assert_eq!(
        check(
            "broker::jobs",
            "use super::server; use super::super::server;"
        ),
        1
    );
    assert_eq!(check("broker", "fn f() { assert!(crate::io::up()); }"), 1);
    assert_eq!(check("broker", "mod inner { use super::super::io::X; }"), 1);
    assert_eq!(check("ids", "fn f(x: crate::limits::X) {}"), 1);
    // Downwards, and in tests.
    assert_eq!(
        check("broker", "use crate::{emqp, frames::Message, ids};"),
        0
    );
    assert_eq!(
        check(
            "broker",
            "#[cfg(test)] mod tests { use crate::server::Server; }"
        ),
        0
    );
    assert_eq!(
        check(
            "server",
            "use crate::broker::Broker; use std::time::Instant;"
        ),
        0
    );
    // The world.
    assert_eq!(check("broker", "use std::time::Instant;"), 1);
    assert_eq!(check("broker", "use std::{fs::File, time::Duration};"), 1);
    assert_eq!(check("broker", "fn f() { std::thread::yield_now() }"), 1);
    assert_eq!(check("zmtp", "use mio::net::TcpStream;"), 1);
    assert_eq!(
        check(
            "zmtp",
            "fn f() { let _: HashMap<u8, u8> = HashMap::new(); }"
        ),
        1
    );
    assert_eq!(check("zmtp", "fn f() { println!(\"x\"); }"), 1);
    assert_eq!(check("pubsub::state", "use std::time::Instant;"), 1);
    assert_eq!(check("pubsub::state::trie", "use crate::io::X;"), 1);
    assert_eq!(check("pubsub::state", "use crate::frames::X;"), 0);
    assert_eq!(
        check("pubsub", "use std::time::Instant; use crate::io::X;"),
        0
    );
    assert_eq!(check("scheduler::node", "use std::time::Instant;"), 1);
    assert_eq!(check("scheduler::store::embedded", "use std::fs::File;"), 0);
    assert_eq!(check("ring", "use std::thread::park;"), 0);
    assert_eq!(check("ring", "use std::time::SystemTime;"), 1);
    assert_eq!(
        check("zmtp", "use std::time::Duration; use std::net::SocketAddr;"),
        0
    );
}
