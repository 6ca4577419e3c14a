//! What samplers need to know beside parameters: texts of tokens, and which end a text.

use super::Rules;
use crate::params::FieldError;
use crate::sampling::samplers::infill::Infill;
use crate::vocabulary::Vocabulary;
use std::sync::Arc;

impl Rules {
    /// The same where the texts of tokens are known.
    #[must_use]
    pub fn with_vocabulary(self, vocabulary: Option<Arc<Vocabulary>>) -> Self {
        Self { vocabulary, ..self }
    }

    /// Checks that there is what samplers need beside parameters.
    ///
    /// # Errors
    /// The field at fault, with its path relative to the parameters.
    pub fn validate(&self) -> Result<(), FieldError> {
        self.params.validate_order_ignoring(self.protected())?;
        if self.chain.as_ref().is_some_and(|chain| chain.has_min_eos_p()) && self.eos().is_empty() {
            let message = "needs a token that ends the text; give eos_token_ids, without ignore_eos";
            return Err(FieldError::new("min_eos_p", message));
        }
        let is_penalised = self.params.history.length_penalty.is_some_and(|length| !length.is_off());
        if is_penalised && self.inherited(|rules| rules.eos.as_deref()).unwrap_or_default().is_empty() {
            let message = "needs a token that ends the text; give eos_token_ids";
            return Err(FieldError::new("length_penalty", message));
        }
        let Some(chain) = self.chain.as_ref().filter(|chain| chain.has_infill()) else { return Ok(()) };
        let wrong = |message: &str| Err(FieldError::new("infill", message));
        if self.vocabulary().is_none() {
            return wrong("needs texts of tokens, which this server does not have; start it with vocabulary");
        }
        if chain.ends.is_empty() {
            return wrong("needs a token that ends the text; give eos_token_ids without ignore_eos, or stop_token_ids");
        }
        Ok(())
    }

    /// The same with the tokens that end the text, where infill is on.
    pub(super) fn with_ends(mut self) -> Self {
        if self.chain.as_ref().is_some_and(|chain| chain.has_infill()) {
            let ends = [self.eos(), self.stop_tokens()].concat();
            self.chain.iter_mut().for_each(|chain| chain.ends.clone_from(&ends));
        }
        self
    }

    /// EOS tokens, where a step asks for them.
    pub(super) fn likely_ends(&self) -> &[u32] {
        if self.chain.as_ref().is_some_and(|chain| chain.has_min_eos_p()) { self.eos() } else { &[] }
    }

    fn vocabulary(&self) -> Option<&Vocabulary> {
        self.inherited(|rules| rules.vocabulary.as_deref())
    }

    /// What infill needs to know, where it is on.
    pub(super) fn infill(&self) -> Option<Infill<'_>> {
        let ends = self.chain.as_ref().map(|chain| &chain.ends[..]).filter(|ends| !ends.is_empty())?;
        Some(Infill { vocabulary: self.vocabulary()?, ends })
    }
}
