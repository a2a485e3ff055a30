//! Text: tokenizers and chat templates, made from a checkpoint.
//!
//! Both come out of whatever the checkpoint has (tokenizer.json and tokenizer_config.json, or GGUF metadata) and
//! behave alike afterwards. Sampling, stop strings and the dialects of the server are no part of this.

mod dates;
mod error;
mod precheck;
mod pretokenizers;
mod pyjson;
mod stream;
mod table;
mod template;
mod tokenizer;
mod vocabulary;

pub use error::TextError;
pub(crate) use pretokenizers::name_of as pre_tokenizer_name;
pub use stream::TextStream;
pub use template::ChatTemplate;
pub use tokenizer::Tokenizer;
