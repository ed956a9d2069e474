# Copyright 2026 The reflex_llm_ros authors
#
# Licensed under the Apache License, Version 2.0 (the "License");
# you may not use this file except in compliance with the License.
# You may obtain a copy of the License at
#
#     http://www.apache.org/licenses/LICENSE-2.0
#
# Unless required by applicable law or agreed to in writing, software
# distributed under the License is distributed on an "AS IS" BASIS,
# WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
# See the License for the specific language governing permissions and
# limitations under the License.

"""Messages to a prompt: the model's own chat template, and text that cannot forge its tokens."""

from collections.abc import Sequence
from datetime import datetime
import json
from pathlib import Path
import re
from typing import Any, NamedTuple

from jinja2 import TemplateError, TemplateSyntaxError
from jinja2.sandbox import ImmutableSandboxedEnvironment
from reflex_llm_ros.engine.errors import BadRequestError, ModelFileError
from reflex_llm_ros.engine.partial_match import open_suffix
from reflex_llm_ros.engine.request import Message
from reflex_llm_ros.engine.tokenizer import Tokenizer

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message.role + '\\n' + message.content"
    " + '<|im_end|>\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}")
"""For a model that has ChatML's tokens and whose file has no template."""

# Half of a surrogate pair: no valid text has it, so that it marks places in the text of
# messages while a template handles them.
_GUARD = '\ud800'
_ROLES = ('system', 'user', 'assistant', 'tool')


class ChatTemplate:
    """
    A Jinja chat template as Hugging Face models carry them.

    It runs in a sandbox: a model file is data from elsewhere and must not reach the machine.

    Parameters
    ----------
    source
        The template.
    bos, eos
        Text of the tokens that begin and end a sequence, for templates that name them.

    Raises
    ------
    ModelFileError
        The template cannot be compiled, or cannot even render one user message.

    """

    def __init__(self, source: str, bos: str = '', eos: str = '') -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=['jinja2.ext.loopcontrols'])
        environment.filters['tojson'] = _tojson
        environment.globals.update(
            raise_exception=_raise_exception, strftime_now=_strftime_now,
            bos_token=bos, eos_token=eos)
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise ModelFileError(
                f'the chat template has an error in line {error.lineno}: {_one_line(error)}; '
                'set model.chat_template_file to a sound one') from error
        except Exception as error:  # Compiling hostile input fails in many ways.
            raise ModelFileError(
                f'the chat template cannot be compiled: {_one_line(error)}; '
                'set model.chat_template_file to a sound one') from error
        self.supports_thinking = 'enable_thinking' in source or '<think>' in source
        try:
            self.render([Message('user', 'Hello')])
        except BadRequestError as error:
            raise ModelFileError(
                f'the chat template fails on a plain user message: {error}; '
                'set model.chat_template_file to a sound one') from error

    def render(self, messages: Sequence[Message], thinking: bool | None = None,
               add_generation_prompt: bool = True) -> str:
        """
        Return the prompt as text.

        Parameters
        ----------
        messages
            The turns, oldest first.
        thinking
            Ask for reasoning or for none; None leaves it to the template.
        add_generation_prompt
            Whether to open the assistant's next turn.

        Raises
        ------
        BadRequestError
            A role is unknown, or the template refuses these messages or fails on them.

        """
        for message in messages:
            if message.role not in _ROLES:
                raise BadRequestError(
                    f'messages: role must be one of {", ".join(_ROLES)}, not {message.role!r}')
        options: dict[str, Any] = {} if thinking is None else {'enable_thinking': thinking}
        try:
            return self._template.render(
                messages=[{'role': message.role, 'content': message.content}
                          for message in messages],
                add_generation_prompt=add_generation_prompt, **options)
        except BadRequestError:
            raise
        except Exception as error:  # A template is a program: it can fail in any way.
            raise BadRequestError(
                f'messages: the chat template fails on them: {_one_line(error)}') from error

    @staticmethod
    def opens_thinking(rendered: str) -> bool:
        """Whether a prompt ends inside a think block, so that the answer starts with one."""
        return rendered.rstrip().endswith('<think>')


class ChatPrompt(NamedTuple):
    """Token ids of a prompt, and whether the answer starts inside a think block."""

    ids: list[int]
    opens_thinking: bool


def load_chat_template(
        template_file: str, source: str | None, tokenizer: Tokenizer) -> ChatTemplate:
    """
    Return the template to use for a model.

    Parameters
    ----------
    template_file
        Path of a template that takes precedence; empty for none.
    source
        The template in the model file, None where it has none: then ChatML, if the vocabulary
        has its tokens.
    tokenizer
        The model's tokenizer.

    Raises
    ------
    ModelFileError
        There is no template, or it is faulty.

    """
    if template_file:
        try:
            source = Path(template_file).read_text(encoding='utf-8')
        except (OSError, ValueError) as error:
            raise ModelFileError(
                f'model.chat_template_file {template_file!r} cannot be read: '
                f'{getattr(error, "strerror", None) or _one_line(error)}') from error
    elif not source:
        if None in (tokenizer.token_id('<|im_start|>'), tokenizer.token_id('<|im_end|>')):
            raise ModelFileError(
                'the model file has no chat template and its vocabulary no <|im_start|>; '
                'set model.chat_template_file')
        source = CHATML
    bos, eos = ('' if token is None else tokenizer.token_text(token)
                for token in (tokenizer.bos_id, tokenizer.eos_id))
    return ChatTemplate(source, bos, eos)


def encode_chat(template: ChatTemplate, tokenizer: Tokenizer, messages: Sequence[Message],
                thinking: bool | None = None) -> ChatPrompt:
    """
    Render messages and encode them, with control tokens from the template alone.

    A control token that is spelled out in a message reaches the model as that text: nobody
    can end their turn and speak as the system. Everything between two control tokens is
    encoded in one go, so that merges cross from template to message as they do in training.

    Raises
    ------
    BadRequestError
        As ``ChatTemplate.render`` and ``Tokenizer.encode``.

    """
    rendered = template.render(
        [Message(message.role, _guard(message.content, tokenizer)) for message in messages],
        thinking)
    ids: list[int] = []
    for part in tokenizer.split_control(rendered):
        if isinstance(part, int):
            ids.append(part)
        else:
            ids += tokenizer.encode(_unguard(part, tokenizer), special=False)
    if tokenizer.add_bos and tokenizer.bos_id is not None and ids[:1] != [tokenizer.bos_id]:
        ids.insert(0, tokenizer.bos_id)
    return ChatPrompt(ids, template.opens_thinking(rendered))


def _guard(content: str, tokenizer: Tokenizer) -> str:
    """Put guarded ids in place of control tokens, and a guard into one that is only begun."""
    if _GUARD in content:
        raise BadRequestError('messages: content is not valid Unicode (surrogate U+D800)')
    guarded = ''.join(
        part if isinstance(part, str) else f'{_GUARD}{part}{_GUARD}'
        for part in tokenizer.split_control(content))
    # What follows in the rendered text could complete it.
    begun = open_suffix(guarded, tokenizer.control_texts)
    if begun < len(guarded):
        guarded = f'{guarded[:begun + 1]}{_GUARD}{_GUARD}{guarded[begun + 1:]}'
    return guarded


def _unguard(text: str, tokenizer: Tokenizer) -> str:
    """Put the text back that ``_guard`` replaced; drop guards that a template cut in half."""
    text = re.sub(
        f'{_GUARD}([0-9]*){_GUARD}',
        lambda match: tokenizer.token_text(int(match[1])) if match[1] else '', text)
    return text.replace(_GUARD, '')


def _raise_exception(message: str) -> None:
    raise BadRequestError(f'messages: {_one_line(message)}')


def _strftime_now(format: str) -> str:  # noqa: A002
    return datetime.now().strftime(format)


def _tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None,
            separators: tuple[str, str] | None = None, sort_keys: bool = False) -> str:
    # Jinja's own escapes HTML, which is not what models are trained on.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators,
                      sort_keys=sort_keys)


def _one_line(error: object) -> str:
    text = error.message if isinstance(error, TemplateError) and error.message else str(error)
    text = ' '.join(text.split()) or type(error).__name__
    return text if len(text) <= 200 else text[:197] + '...'
