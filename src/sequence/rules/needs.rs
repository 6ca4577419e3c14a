//! What samplers need besides parameters: the texts of tokens, the tokens that end a text, and grammars.

use super::Rules;
use crate::error::Refusal;
use crate::grammar::{CompileDeadline, CompileError, Grammar, Grammars};
use crate::params::FieldError;
use crate::permits::Counter;
use crate::sampling::samplers::infill::Infill;
use crate::sequence::OpenError;
use crate::vocabulary::Vocabulary;
use std::sync::Arc;

/// Said of what needs the texts of tokens where there are none.
pub(crate) const LACKS_TEXTS: &str =
    "needs the texts of tokens, which this server does not have; start it with vocabulary";

impl Rules {
    /// The same, with the texts of tokens if they are known.
    #[must_use]
    pub fn with_vocabulary(self, vocabulary: Option<Arc<Vocabulary>>) -> Self {
        Self { vocabulary, ..self }
    }

    /// The same, with the grammar that the parameters ask for. It is compiled if it is not there yet, by the deadline
    /// of its message.
    ///
    /// # Errors
    /// At `grammar`, if it is wrong or something that it needs is missing; or if there is too little room in `state`.
    pub fn with_grammar(
        mut self,
        grammars: Option<&Grammars>,
        state: &Arc<Counter>,
        compile_deadline: &CompileDeadline,
    ) -> Result<Self, OpenError> {
        let Some(params) = &self.params.history.grammar else { return Ok(self) };
        let wrong = |message: &str| Err(OpenError::Invalid(FieldError::new("grammar", message)));
        let ends = [self.eos(), self.stop_tokens()].concat();
        if ends.is_empty() {
            return wrong("needs a token that ends the text; give eos_token_ids without ignore_eos, or stop_token_ids");
        }
        // The base's grammar is compiled already, and its start is not prepared again for each sequence.
        let is_same =
            |base: &&Arc<Self>| base.params.history.grammar.as_ref().is_some_and(|of| Arc::ptr_eq(of, params));
        if let Some(known) = self.base.as_ref().filter(is_same).and_then(|base| base.grammar.as_ref()) {
            self.grammar = Some(Arc::new(known.ending(ends)));
            return Ok(self);
        }
        let Some(grammars) = grammars else {
            return wrong(
                "needs a server that compiles grammars, and this one does not; start it with grammars and vocabulary",
            );
        };
        let compiled = grammars.compile(params, state, compile_deadline).map_err(|error| match error {
            CompileError::Invalid(field) => OpenError::Invalid(field.within("grammar")),
            CompileError::NoRoom(bytes) => OpenError::no_room("params", bytes, state.limit()),
            CompileError::Busy => OpenError::Refused(Refusal::GrammarsBusy),
        })?;
        self.grammar = Some(Arc::new(Grammar::new(compiled, &params.start, ends)));
        Ok(self)
    }

    /// After how many output tokens the grammar begins, if it begins at a position; otherwise 0.
    pub(in crate::sequence) fn grammar_position(&self) -> u64 {
        self.params.history.grammar.as_ref().map_or(0, |grammar| u64::from(grammar.start.position))
    }

    /// What texts have to match.
    pub(in crate::sequence) fn grammar(&self) -> Option<&Arc<Grammar>> {
        self.params.history.grammar.as_ref().and(self.grammar.as_ref())
    }

    /// Checks that what samplers need besides parameters is there.
    ///
    /// # Errors
    /// The field at fault, with its path relative to the parameters.
    pub fn validate(&self) -> Result<(), FieldError> {
        self.params.validate_order_ignoring(self.protected())?;
        if let Some(filters) = self.thinking_filters() {
            let found = self.params.validate_thinking(filters, self.protected());
            let is_own = self.params.history.thinking_budget.is_some();
            let hint =
                "; the thinking budget comes from default_params or the server; an empty thinking_budget turns it off";
            found.map_err(|error| if is_own { error } else { of_a_default(error, hint) })?;
        }
        if self.chain.as_ref().is_some_and(|chain| chain.has_min_eos_p()) && self.eos().is_empty() {
            let message = "needs a token that ends the text; give eos_token_ids, without ignore_eos";
            return Err(FieldError::new("min_eos_p", message));
        }
        let is_penalised = self.params.history.length_penalty.is_some_and(|length| !length.is_off());
        if is_penalised && self.inherited(|rules| rules.eos.as_deref()).unwrap_or_default().is_empty() {
            let message = "needs a token that ends the text; give eos_token_ids";
            return Err(FieldError::new("length_penalty", message));
        }
        let has_texts = self.vocabulary().is_some();
        if self.params.history.dry_window().is_some() && self.breaker_texts().is_some() && !has_texts {
            let error = FieldError::new("dry_sequence_breaker_texts", LACKS_TEXTS);
            let is_own = self.patterns.as_ref().is_some_and(|own| own.breaker_texts.is_some());
            let hint = "; the texts come from default_params or the server; a dry_multiplier of 0 turns DRY off";
            return Err(if is_own { error } else { of_a_default(error, hint) });
        }
        let Some(chain) = self.chain.as_ref().filter(|chain| chain.has_infill()) else { return Ok(()) };
        let wrong = |message: &str| Err(FieldError::new("infill", message));
        if !has_texts {
            return wrong(LACKS_TEXTS);
        }
        if chain.ends.is_empty() {
            return wrong("needs a token that ends the text; give eos_token_ids without ignore_eos, or stop_token_ids");
        }
        Ok(())
    }

    /// The same, with the tokens that end the text, if infill is on.
    pub(super) fn with_ends(mut self) -> Self {
        if self.chain.as_ref().is_some_and(|chain| chain.has_infill()) {
            let ends = [self.eos(), self.stop_tokens()].concat();
            self.chain.iter_mut().for_each(|chain| chain.ends.clone_from(&ends));
        }
        self
    }

    /// EOS tokens, if a step needs them.
    pub(super) fn likely_ends(&self) -> &[u32] {
        if self.chain.as_ref().is_some_and(|chain| chain.has_min_eos_p()) { self.eos() } else { &[] }
    }

    pub(super) fn vocabulary(&self) -> Option<&Vocabulary> {
        self.inherited(|rules| rules.vocabulary.as_deref())
    }

    /// What infill needs, if it is on.
    pub(super) fn infill(&self) -> Option<Infill<'_>> {
        let ends = self.chain.as_ref().map(|chain| &chain.ends[..]).filter(|ends| !ends.is_empty())?;
        Some(Infill { vocabulary: self.vocabulary()?, ends })
    }
}

/// Explains an error in something that comes from defaults, not from the text's own parameters.
fn of_a_default(error: FieldError, hint: &str) -> FieldError {
    FieldError { message: error.message + hint, ..error }
}
