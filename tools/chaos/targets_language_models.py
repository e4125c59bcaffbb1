"""Language models from a stranger: directories, GGUF and ONNX files, chat templates, prompts."""

from __future__ import annotations

import json
import os
from pathlib import Path
from random import Random
from typing import Any

from tools.chaos.harness import OUTSIDE, Case, Link, Target, Wrong, files_of
from tools.chaos.mutations import any_text, changed_bytes, changed_safetensors, changed_values, json_bytes
from tools.chaos.seeds import TEXTS

os.environ["HF_HUB_OFFLINE"] = "1"

#: Templates that want to get out, or never end. None may run code, and each ends within bounds.
TEMPLATES = [
    "{{ messages[0]['content'] }}",
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ cycler.__init__.__globals__.os.system('id') }}",
    "{{ self._TemplateReference__context }}",
    "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "{{ messages.append(1) }}{{ messages }}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% for i in range(10 ** 9) %}x{% endfor %}",
    "{{ 'a' * 10 ** 10 }}",
    "{{ 2 ** 2 ** 40 }}",
    "{{ '%9999999999d' % 1 }}",
    "{{ '{:>9999999999}'.format(1) }}",
    "{{ 'a'.ljust(10 ** 10) }}",
    "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
    "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "{% include '/proc/version' %}",
    "{% import 'os' as os %}{{ os }}",
    "{% extends messages %}",
    "{{ raise_exception('no') }}",
    "{{ strftime_now('%Y' * 100) }}",
    "{{ messages | tojson }}",
    "{{ messages[99]['content'] }}",
    "{{ 1 // 0 }}",
    "{{ undefined.attribute }}",
    "{% if %}",
    "{{ messages[0]['content'].encode().decode('utf-16') }}",
    "{{ dict(a=messages)[none] }}",
    "{{ messages | groupby('a') | list | join }}",
    "{% for m in messages %}{{ m.content | upper }}{% endfor %}",
    "{{ 'a' | center(9999999999) }}",
    "{{ lipsum(n=1000000) }}",
    "{{ [1] | batch(9999999999, 'x') | list }}",
    "{{ messages | slice(9999999) | list | length }}",
]


class ChatTemplates(Target):
    """Chat templates, rendered once for a prompt."""

    name = "chat-templates"

    def __init__(self, seeds: Path) -> None:
        super().__init__(seeds)
        import tiny_models

        self.tokenizer = tiny_models.byte_level_tokenizer()
        self.good = tiny_models.CHATML

    def case(self, random: Random) -> Case:
        template = random.choice([*TEMPLATES, self.good])
        if random.random() < 0.5:
            spoilt = changed_bytes(random, template.encode(), random.choice(TEMPLATES).encode())
            template = spoilt.decode("utf-8", "replace")
        return {"chat_template.jinja": template.encode("utf-8", "surrogatepass")}

    def read(self, folder: Path) -> None:
        from torchsdm.data import Document
        from torchsdm.hidden_states._tokens import PromptEncoder
        from torchsdm.hidden_states.prompts import TaskPrompt

        self.tokenizer.chat_template = (folder / "chat_template.jinja").read_bytes().decode("utf-8", "surrogatepass")
        encoder = PromptEncoder(self.tokenizer, TaskPrompt("Is it? {document}"), use_chat=True, max_tokens=200)
        encoder.encode([Document("a text", 0)])
        if len(encoder.rendered) > 1_000_000:
            raise Wrong(f"a prompt of {len(encoder.rendered)} characters")


class Prompts(Target):
    """Templates of prompts."""

    name = "prompts"

    def case(self, random: Random) -> Case:
        good = {"template": "Is it? {document} {answer}", "label_words": [["a", "No"], ["b", "Yes"]], "system": None}
        return {"prompt.json": json.dumps(changed_values(random, good)).encode()}

    def read(self, folder: Path) -> None:
        from torchsdm.hidden_states.prompts import TaskPrompt

        given = json.loads((folder / "prompt.json").read_text())
        if isinstance(given, dict):
            prompt = TaskPrompt(given.get("template"), given.get("label_words", {}), given.get("system"))  # type: ignore[arg-type]
            prompt.fill(document="x", answer="y")


class _LanguageModel(Target):
    """A language model that is loaded and, if that works, reads a text."""

    def use(self, reference: Path) -> None:
        from torchsdm import HiddenStateExtractor
        from torchsdm.hidden_states import Backbone

        extractor = HiddenStateExtractor(Backbone.load(reference), max_tokens=32)
        states = extractor.transform(TEXTS[:2])
        if len(states) != 2:
            raise Wrong(f"states of shape {states.shape}")


class Directory(_LanguageModel):
    """A directory of transformers."""

    name = "language-model"

    def __init__(self, seeds: Path) -> None:
        super().__init__(seeds)
        self.kinds = [files_of(seeds / name) for name in ("encoder", "decoder")]

    def case(self, random: Random) -> Case:
        files = dict(random.choice(self.kinds))
        name = random.choice(sorted(files))
        content = files[name]
        assert isinstance(content, bytes)
        if random.random() < 0.05:
            files[name] = Link(random.choice([f"../{OUTSIDE}", "missing", name]))
        elif random.random() < 0.05:
            del files[name]
        elif name.endswith(".json") and random.random() < 0.7:
            files[name] = json_bytes(random, changed_values(random, json.loads(content)))
        elif name.endswith(".safetensors") and random.random() < 0.7:
            files[name] = changed_safetensors(random, content)
        else:
            files[name] = changed_bytes(random, content)
        if random.random() < 0.1:
            files["modules.json"] = json_bytes(random, changed_values(random, [{"path": "", "type": any_text(random)}]))
        if random.random() < 0.1:
            about = (
                json.loads(files["config.json"])
                if isinstance(files.get("config.json"), bytes) and name != "config.json"
                else {}
            )  # type: ignore[arg-type]
            files["config.json"] = json.dumps(
                {**about, "auto_map": {"AutoModel": "evil.Model", "AutoConfig": "evil.C"}}
            ).encode()
            files["evil.py"] = b"import os; os.system('id')"
        return files

    def read(self, folder: Path) -> None:
        self.use(folder)


class Gguf(_LanguageModel):
    """A GGUF file."""

    name = "gguf"

    def __init__(self, seeds: Path) -> None:
        super().__init__(seeds)
        self.content = (seeds / "tiny.gguf").read_bytes()

    def case(self, random: Random) -> Case:
        head = self.content[: self.content.index(b"token_embd")]
        spoilt = changed_bytes(random, head) + self.content[len(head) :]
        return {"tiny.gguf": spoilt if random.random() < 0.7 else changed_bytes(random, self.content)}

    def read(self, folder: Path) -> None:
        self.use(folder / "tiny.gguf")


class Onnx(_LanguageModel):
    """An ONNX file with the configuration beside it."""

    name = "onnx"

    def __init__(self, seeds: Path) -> None:
        super().__init__(seeds)
        self.files = files_of(seeds / "onnx")

    def case(self, random: Random) -> Case:
        content = self.files["model.onnx"]
        assert isinstance(content, bytes)
        if random.random() < 0.3:
            return {**self.files, "model.onnx": _rewired(random, content)}
        return {**self.files, "model.onnx": changed_bytes(random, content)}

    def read(self, folder: Path) -> None:
        self.use(folder / "model.onnx")


def _rewired(random: Random, content: bytes) -> bytes:
    """A sound ONNX file with weights elsewhere, an endless loop, or other inputs and outputs."""
    import onnx

    model: Any = onnx.load_from_string(content)
    how = random.randrange(5)
    weight = random.choice(list(model.graph.initializer))
    if how == 0:  # weights in a file outside of the folder
        weight.ClearField("raw_data")
        weight.data_location = onnx.TensorProto.EXTERNAL
        for key, value in {"location": random.choice([f"../{OUTSIDE}", "/proc/version", "missing"]), "offset": "0",
                           "length": random.choice(["10", "99999999999"])}.items():  # fmt: skip
            entry = weight.external_data.add()
            entry.key, entry.value = key, value
    elif how == 1:
        weight.dims[0] = random.choice([-1, 0, 2**40, weight.dims[0] + 1])
    elif how == 2:
        node = random.choice(list(model.graph.node))
        node.op_type = random.choice(["Loop", "Identity", "PythonOp", "Add", "Reshape", ""])
        node.domain = random.choice(["", "ai.onnx.contrib", "com.microsoft"])
    elif how == 3:
        value = random.choice([*model.graph.input, *model.graph.output])
        value.name = random.choice(["input_ids", "other", "last_hidden_state", ""])
    else:
        value = random.choice([*model.graph.input, *model.graph.output])
        value.type.tensor_type.elem_type = random.choice([0, 1, 6, 7, 8, 9, 10, 11, 14, 99])
        del value.type.tensor_type.shape.dim[random.randrange(3) :]
    spoilt: bytes = model.SerializeToString()
    return spoilt


LANGUAGE_MODEL_TARGETS: dict[type[Target], float] = {
    ChatTemplates: 1,
    Prompts: 20,
    Directory: 2,
    Gguf: 1,
    Onnx: 2,
}
