//! `--print-config`: effective values with their origins, as a file that gives the same settings.

use super::catalogue::Key;
use super::load::Settings;
use std::fmt::Write as _;

impl Settings {
    /// All values the component reads, each below a comment with its origin. Read back as a
    /// settings file, it gives the same values; secrets are left out, with a comment.
    pub fn print(&self) -> String {
        let mut out = String::new();
        let file = match self.file() {
            Some(path) => path.display().to_string(),
            None => "none".to_owned(),
        };
        let _ = writeln!(out, "# settings file: {file}");
        let _ = writeln!(out, "[{}]", self.component().section());
        for key in self.keys().filter(|key| *key != Key::ConfigFile) {
            let _ = writeln!(out, "# {}", self.origin(key));
            let text = self.text(key);
            if key.is_secret() && !text.is_empty() {
                let _ = writeln!(out, "# {} = {text}", key.name());
            } else {
                let _ = writeln!(out, "{} = {text}", key.name());
            }
        }
        out
    }
}
