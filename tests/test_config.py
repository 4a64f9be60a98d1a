"""Settings are read strictly: what comes out is valid, and what is refused is refused with its file
and its key.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from electra.config import SettingError, UserError, build, convert, in_section
from electra.files import read_json_object, read_json_object_or_empty, read_toml
from electra.finetuning.recipe import FinetuneConfig
from electra.pretraining.recipe import Recipe, load_recipe
from electra.renamed import RENAMED, Renamed
from electra.settings import (
    as_dict,
    as_toml,
    build_layers,
    differing_keys,
    fingerprint,
    merge,
    parse_environment,
    parse_flags,
    recipe_names,
    setting_keys,
)
from tests.wording import wording_of

wording = wording_of(__file__)


@dataclass(frozen=True, kw_only=True)
class Wheel:
    spokes: int = 32
    width: float = 2.5
    tubeless: bool = False


@dataclass(frozen=True, kw_only=True)
class Chain:
    name: Literal["chain"] = "chain"
    links: int = 110


@dataclass(frozen=True, kw_only=True)
class Belt:
    name: Literal["belt"] = "belt"
    length: float = 1.2


@dataclass(frozen=True, kw_only=True)
class Bicycle:
    """One of every kind of field that a config may have."""

    owner: str
    wheel: Wheel = field(default_factory=Wheel)
    drive: Chain | Belt = field(default_factory=Chain)
    gears: tuple[int, int] = (2, 11)
    colour: Literal["red", "green"] = "red"
    lock: int | None = None

    def __post_init__(self) -> None:
        if self.wheel.spokes < self.gears[0]:
            raise SettingError("wheel.spokes", "is fewer than {gears} has in front", self)


def make(**values: object) -> Bicycle:
    return build(Bicycle, {"owner": "Ada", **values}, source="bike.toml")


def from_flags(*tokens: str) -> Bicycle:
    return build_layers(
        Bicycle, {"bike.toml": {"owner": "Ada"}, "command line": parse_flags(tokens, Bicycle)}
    )


def refused(**values: object) -> str:
    with pytest.raises(UserError) as refusal:
        make(**values)
    return str(refusal.value)


# ---- values --------------------------------------------------------------------------------------


def test_an_unknown_key_is_refused_with_the_nearest_known_one() -> None:
    assert (
        refused(wheel={"spoke": 28})
        == "bike.toml: unknown key wheel.spoke; did you mean wheel.spokes?"
    )


def test_an_unknown_key_near_to_nothing_is_refused_with_all_known_ones() -> None:
    assert refused(wheel={"zzz": 1}) == (
        "bike.toml: unknown key wheel.zzz; known are wheel.spokes, wheel.width, wheel.tubeless"
    )


def test_a_missing_key_is_named() -> None:
    with pytest.raises(UserError, match=wording("a_missing_key_is_named")):
        build(Bicycle, {}, source="bike.toml")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"wheel": {"spokes": "28"}}, "wheel.spokes must be a whole number, found str '28'"),
        ({"wheel": {"spokes": 28.0}}, "wheel.spokes must be a whole number, found float 28.0"),
        ({"wheel": {"spokes": True}}, "wheel.spokes must be a whole number, found bool True"),
        ({"wheel": {"width": True}}, "wheel.width must be a finite number, found bool True"),
        (
            {"wheel": {"width": float("nan")}},
            "wheel.width must be a finite number, found float nan",
        ),
        (
            {"wheel": {"width": float("inf")}},
            "wheel.width must be a finite number, found float inf",
        ),
        (
            {"wheel": {"tubeless": "False"}},
            "wheel.tubeless must be true or false, found str 'False'",
        ),
        ({"wheel": {"tubeless": 0}}, "wheel.tubeless must be true or false, found int 0"),
        ({"wheel": 5}, "wheel is a section, found 5; write wheel.NAME = …"),
        ({"owner": 5}, "owner must be a string, found int 5"),
        ({"gears": 3}, "gears must be a list of 2 numbers, found int 3"),
        ({"gears": [1, 2, 3]}, "gears must be a list of 2 numbers, found list [1, 2, 3]"),
        ({"gears": [1, "x"]}, "gears must be a whole number, found str 'x'"),
        ({"lock": "no"}, "lock must be a whole number, found str 'no'"),
        (
            {"colour": "gren"},
            "colour must be one of 'red', 'green', found 'gren'; did you mean green?",
        ),
        (
            {"colour": ["red"]},
            "colour must be one of 'red', 'green', found ['red']; did you mean red?",
        ),
        ({"drive": {"name": "shaft"}}, "drive.name must be one of 'chain', 'belt', found 'shaft'"),
        (
            {"drive": {"name": ["belt"]}},
            "drive.name must be one of 'chain', 'belt', found ['belt']; did you mean belt?",
        ),
        ({"drive": {"links": 3}}, "drive.name must be one of 'chain', 'belt', found None"),
        ({"drive": "belt"}, "drive.name must be one of 'chain', 'belt', found None"),
    ],
)
def test_a_wrong_value_is_refused_with_its_file_its_key_and_what_was_expected(
    values: dict[str, object], message: str
) -> None:
    assert refused(**values) == f"bike.toml: {message}"


def test_a_whole_number_may_stand_where_a_number_is_wanted() -> None:
    width = make(wheel={"width": 3}).wheel.width
    assert (width, type(width)) == (3.0, float)


def test_a_list_becomes_a_tuple() -> None:
    assert make(gears=[3, 9]).gears == (3, 9)


@dataclass(frozen=True, kw_only=True)
class Shed:
    """What a list of any length and a section of free names look like."""

    wheels: tuple[Wheel, ...] = ()
    chains: dict[str, Chain] = field(default_factory=dict)
    marks: dict[str, Any] = field(default_factory=dict)


def test_lists_of_any_length_and_sections_of_free_names_hold_what_their_field_declares() -> None:
    shed = build(
        Shed,
        {
            "wheels": [{"width": 1}, {"width": 2}],
            "chains": {"spare": {"name": "chain"}},
            "marks": {"a": [1, "x"]},
        },
        source="shed.toml",
    )
    assert [wheel.width for wheel in shed.wheels] == [1.0, 2.0]
    assert isinstance(shed.chains["spare"], Chain)
    assert shed.marks == {"a": [1, "x"]}
    with pytest.raises(
        UserError,
        match=wording(
            "lists_of_any_length_and_sections_of_free_names_hold_what_their_field_declares"
        ),
    ):
        build(Shed, {"chains": {"spare": {"name": "chain", "lnks": 3}}}, source="shed.toml")
    with pytest.raises(
        UserError,
        match=wording(
            "lists_of_any_length_and_sections_of_free_names_hold_what_their_field_declares_2"
        ),
    ):
        build(Shed, {"wheels": 3}, source="shed.toml")


def test_a_union_is_told_apart_by_its_name() -> None:
    assert make(drive={"name": "belt", "length": 1.5}).drive == Belt(length=1.5)


def test_a_key_of_the_other_kind_is_refused_with_what_to_do() -> None:
    assert refused(drive={"name": "belt", "links": 90}) == (
        "bike.toml: drive.links does not go with drive.name = 'belt'; leave it out, or begin with "
        "a recipe whose "
        "drive is 'belt'"
    )


def test_what_the_class_itself_refuses_is_said_with_the_file() -> None:
    assert (
        refused(gears=[40, 11])
        == "bike.toml: wheel.spokes=32 is fewer than gears=[40, 11] has in front"
    )


@dataclass(frozen=True, kw_only=True)
class Shop:
    """A section that refuses itself."""

    bicycle: Bicycle


def test_an_error_carries_its_dotted_keys_its_section_and_its_source() -> None:
    values = {"bicycle": {"owner": "Ada", "gears": [40, 11]}}
    with pytest.raises(SettingError) as refusal:
        build(Shop, values, source="shop.toml")
    assert refusal.value.key == "bicycle.wheel.spokes"
    assert refusal.value.keys == ["bicycle.wheel.spokes", "bicycle.gears"]
    assert refusal.value.source == "shop.toml"
    assert str(refusal.value) == (
        "shop.toml: bicycle.wheel.spokes=32 is fewer than bicycle.gears=[40, 11] has in front"
    )


def test_values_of_a_message_read_as_in_toml_and_a_name_stands_alone() -> None:
    error = SettingError("lock", "needs {wheel.tubeless} and {colour}; set {gears:name}", make())
    assert str(error) == "lock=None needs wheel.tubeless=false and colour='red'; set gears"
    assert error.keys == ["lock", "wheel.tubeless", "colour"]


def test_an_error_crosses_processes_whole() -> None:
    error = SettingError("lock", "is {gears:name}", make()).in_section("bike.").with_source("x")
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.key) == ("x: bike.lock=None is bike.gears", "bike.lock")


def test_an_error_raised_in_a_section_names_it() -> None:
    with pytest.raises(SettingError) as refusal, in_section("bike"):
        Bicycle(owner="Ada", gears=(40, 11))
    assert refusal.value.key == "bike.wheel.spokes"


def test_a_wrong_type_an_unknown_and_a_missing_key_carry_the_key_too() -> None:
    for values, key in (({"owner": 5}, "owner"), ({"ownr": ""}, "ownr"), ({}, "owner")):
        with pytest.raises(SettingError) as refusal:
            build(Bicycle, values, source="bike.toml")
        assert refusal.value.key == key


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        (["a", "b"], tuple[str, ...], ("a", "b")),
        ([[1, 2], [3]], tuple[tuple[int, ...], ...], ((1, 2), (3,))),
        ([1, 2.5], list[float], [1.0, 2.5]),
        ({"a": [1]}, dict[str, list[int]], {"a": [1]}),
        ("runs/one", Path, Path("runs/one")),
        (None, Path | None, None),
        ([{"width": 1}], tuple[Wheel, ...] | None, (Wheel(width=1.0),)),
        ("red", Literal["red", "green"], "red"),
        (3, int | str, 3),
        ("x", int | str, "x"),
    ],
    ids=str,
)
def test_json_becomes_what_a_field_declares(value: object, hint: Any, expected: object) -> None:
    converted = convert(value, hint, source="x.json", key="field")
    assert (converted, type(converted)) == (expected, type(expected))


@pytest.mark.parametrize(
    ("value", "hint", "message"),
    [
        (["a", 1], tuple[str, ...], "field[1] must be a string, found int 1"),
        (2**64, int, "field must be a whole number, found int 18446744073709551616"),
        (2**64, int | None, "field must be a whole number, found int 18446744073709551616"),
        (5, Path, "field must be a path, found int 5"),
        (True, int | str, "field must be a whole number or a string, found bool True"),
    ],
    ids=str,
)
def test_json_of_another_kind_is_refused_with_its_place(
    value: object, hint: Any, message: str
) -> None:
    with pytest.raises(SettingError) as refusal:
        convert(value, hint, source="x.json", key="field")
    assert str(refusal.value) == f"x.json: {message}"


# ---- renamed settings ----------------------------------------------------------------------------


@pytest.fixture
def renamed(monkeypatch: pytest.MonkeyPatch) -> None:
    former = {"wheel.size": Renamed("wheel.spokes", {"few": "28"})}
    for module in ("config", "renamed", "settings"):
        monkeypatch.setattr(f"electra.{module}.RENAMED", former)


@pytest.mark.usefixtures("renamed")
def test_a_former_key_is_refused_with_its_present_name_and_value() -> None:
    assert refused(wheel={"size": "few"}) == (
        'bike.toml: wheel.size is now called wheel.spokes; write wheel.spokes = "28" instead'
    )
    with pytest.raises(
        UserError, match=wording("a_former_key_is_refused_with_its_present_name_and_value")
    ):
        build(Shop, {"bicycle": {"owner": "Ada", "wheel": {"size": 3}}}, source="x")


@pytest.mark.usefixtures("renamed")
@pytest.mark.parametrize("flag", ["--wheel.size", "--size"])
def test_a_former_flag_is_refused_with_its_present_name_and_value(flag: str) -> None:
    with pytest.raises(SettingError) as refusal:
        from_flags(flag, "few")
    assert str(refusal.value) == (
        f"command line: {flag} is now called --wheel.spokes; write --wheel.spokes 28"
    )


@pytest.mark.usefixtures("renamed")
def test_a_former_variable_is_refused_with_its_present_name_and_value() -> None:
    with pytest.raises(SettingError) as refusal:
        parse_environment({"ELECTRA_WHEEL_SIZE": "few"}, Bicycle)
    assert str(refusal.value) == (
        "environment: ELECTRA_WHEEL_SIZE is now called ELECTRA_WHEEL_SPOKES; write "
        "ELECTRA_WHEEL_SPOKES=28"
    )


def test_a_recipe_with_a_former_key_is_refused_with_its_present_name(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('[objective]\nname = "rtd"\ngenerator_learns = "adversarially"\n')
    with pytest.raises(SettingError) as refusal:
        load_recipe("tiny", files=[mine])
    assert str(refusal.value) == (
        f"{mine}: objective.generator_learns is now called objective.generator_training; write "
        'objective.generator_training = "adversarial" instead'
    )
    with pytest.raises(
        UserError, match=wording("a_recipe_with_a_former_key_is_refused_with_its_present_name")
    ):
        load_recipe("tiny", flags=["--generator-learns=nothing"])


def test_every_renamed_key_leads_to_one_that_exists() -> None:
    known = {*setting_keys(Recipe), *setting_keys(FinetuneConfig)}
    assert {new.key for new in RENAMED.values()} <= known
    assert not RENAMED.keys() & known


# ---- files ---------------------------------------------------------------------------------------


def test_a_file_that_is_no_toml_is_refused_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "bad.toml").write_text("a = 1\nb =\n")
    with pytest.raises(UserError, match=wording("a_file_that_is_no_toml_is_refused_with_the_line")):
        read_toml(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    ("text", "line", "key"),
    [
        ("a = 1\na = 2\n", 2, "a"),
        ("[s]\nb.c = [\n 1,\n]\nb.c = [\n 1,\n]", 5, "b.c"),
        ("s = 1\n[s]  # again\nx = 1\n", 2, "[s]"),
        ("a.b = 1\na = 2", 2, "a"),
    ],
)
def test_a_key_that_is_set_twice_is_named_with_its_line(tmp_path, text, line, key):
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(UserError) as caught:
        read_toml(tmp_path / "bad.toml")
    expected = wording("a_key_that_is_set_twice_is_named_with_its_line")
    assert str(caught.value).endswith(expected.format(line=line, key=key))


def test_a_toml_file_of_another_encoding_is_refused_with_the_line(tmp_path):
    (tmp_path / "bad.toml").write_bytes(b"a = 1\n# caf\xe9\n")
    with pytest.raises(
        UserError, match=wording("a_toml_file_of_another_encoding_is_refused_with_the_line")
    ):
        read_toml(tmp_path / "bad.toml")


@pytest.mark.parametrize(
    "make",
    [lambda path: None, Path.mkdir, lambda path: path.write_bytes(b"\xff\xfe")],
    ids=["missing", "folder", "binary"],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path: Path, make) -> None:  # type: ignore[no-untyped-def]
    make(tmp_path / "x.toml")
    with pytest.raises(UserError, match=wording("a_file_that_cannot_be_read_is_named")):
        read_toml(tmp_path / "x.toml")


def test_json_is_read_as_an_object(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": [1]}')
    assert read_json_object(tmp_path / "x.json") == {"a": [1]}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no x.json there"),
        (b"[1]", "must hold a JSON object, found list"),
        (b"{", "cannot be read as JSON: Expecting property name"),
        (b"\xff", "cannot be read as JSON: 'utf-8' codec can't decode"),
        (b"[" * 10**5, "cannot be read as JSON: nested more than 100 deep"),
        (b'{"a": [%s %d]}' % (b"[]," * 100, 1 << 5000), "an integer of more than 4096 bits"),
    ],
    ids=["missing", "list", "cut short", "binary", "deep", "long number"],
)
def test_what_is_no_json_object_is_refused_with_its_path_and_a_remedy(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError) as refusal:
        read_json_object(path, remedy="do something")
    assert str(refusal.value).startswith((f"{path}: ", f"{tmp_path}: no x.json"))
    assert message in str(refusal.value)
    assert str(refusal.value).endswith("; do something")
    assert read_json_object_or_empty(path) == {}


def test_a_file_that_is_too_large_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("electra.files.MAX_BYTES", 3)
    (tmp_path / "x.json").write_text("{   }")
    with pytest.raises(UserError, match=wording("a_file_that_is_too_large_is_not_read")):
        read_json_object(tmp_path / "x.json")


# ---- flags ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tokens", [["--wheel.spokes", "28"], ["--wheel.spokes=28"], ["--spokes", "28"], ["--spokes=28"]]
)
def test_a_flag_is_a_dotted_key_or_its_last_word_where_that_is_unique(tokens: list[str]) -> None:
    assert from_flags(*tokens).wheel.spokes == 28


def test_dashes_and_underscores_are_the_same() -> None:
    dashes = load_recipe("tiny", flags=["--optimizer.learning-rate", "3e-4", "--max-grad-norm=2"])
    underscores = load_recipe(
        "tiny", flags=["--optimizer.learning_rate", "3e-4", "--max_grad_norm=2"]
    )
    assert dashes == underscores
    assert dashes.optimizer.learning_rate == 3e-4


@pytest.mark.parametrize(("text", "expected"), [("true", True), ("False", False), ("TRUE", True)])
def test_a_flag_takes_the_type_of_its_field(text: str, expected: bool) -> None:
    assert from_flags("--tubeless", text).wheel.tubeless is expected


def test_a_flag_that_is_true_or_false_is_true_without_a_value() -> None:
    assert from_flags("--tubeless").wheel.tubeless
    both = from_flags("--tubeless", "--width", "3")
    assert (both.wheel.tubeless, both.wheel.width) == (True, 3.0)


def test_a_flag_may_be_a_list_or_nothing_or_negative() -> None:
    assert from_flags("--gears", "3,9").gears == (3, 9)
    assert from_flags("--lock", "none").lock is None
    assert from_flags("--width", "-1").wheel.width == -1.0


@pytest.mark.parametrize(
    ("tokens", "message"),
    [
        (["--spokes", "many"], "command line: wheel.spokes must be a whole number, found 'many'"),
        (["--spokes", "2.5"], "command line: wheel.spokes must be a whole number, found '2.5'"),
        (["--width", "nan"], "command line: wheel.width must be a finite number, found 'nan'"),
        (["--tubeless", "yes"], "command line: wheel.tubeless must be true or false, found 'yes'"),
        (["--gears", "3"], "command line: gears must be a list of 2 numbers, found '3'"),
        (["--spokse", "3"], "command line: unknown setting --spokse; did you mean --spokes?"),
        (
            ["--wheel.spoke", "3"],
            "command line: unknown setting --wheel.spoke; did you mean --wheel.spokes?",
        ),
        (["--qqqq", "3"], "command line: unknown setting --qqqq; --print-config lists them all"),
        (["--spokes"], "--spokes needs a value"),
        (["--spokes", "--width", "3"], "--spokes needs a value"),
        (["spokes", "3"], "unexpected argument 'spokes'; settings are written --section.key value"),
        (["--wheel", "3"], "command line: unknown setting --wheel; did you mean --wheel.width?"),
    ],
)
def test_a_wrong_flag_is_refused_with_what_was_probably_meant(
    tokens: list[str], message: str
) -> None:
    with pytest.raises(UserError) as refusal:
        from_flags(*tokens)
    assert str(refusal.value) == message


def test_a_last_word_that_is_not_unique_is_refused_with_every_candidate() -> None:
    with pytest.raises(
        UserError, match=wording("a_last_word_that_is_not_unique_is_refused_with_every_candidate")
    ):
        load_recipe("tiny", flags=["--width", "64"])


def test_a_misspelt_flag_may_have_meant_an_option_that_is_no_setting() -> None:
    with pytest.raises(
        UserError, match=wording("a_misspelt_flag_may_have_meant_an_option_that_is_no_setting")
    ):
        parse_flags(["--overwrit"], Bicycle, other_flags=["overwrite"])


# ---- the environment, and who wins ---------------------------------------------------------------


def test_a_variable_of_the_environment_is_a_setting() -> None:
    layer = parse_environment({"ELECTRA_WHEEL_SPOKES": "28", "PATH": "/bin"}, Bicycle)
    assert build(Bicycle, merge({"owner": "Ada"}, layer), source="x").wheel.spokes == 28


def test_a_misspelt_variable_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=wording("a_misspelt_variable_is_refused_with_the_nearest")):
        parse_environment({"ELECTRA_WHEEL_SPOKE": "28"}, Bicycle)


def test_a_variable_that_is_near_to_no_setting_is_refused_with_what_to_do() -> None:
    with pytest.raises(
        UserError, match=wording("a_variable_that_is_near_to_no_setting_is_refused_with_what_to_do")
    ):
        parse_environment({"ELECTRA_HOME": "/opt"}, Bicycle)


def test_files_win_over_the_recipe_the_environment_over_files_and_flags_over_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.toml").write_text(
        "[training]\nseed = 1\nbatch_size = 64\nmax_steps = 10\neval_rows = 5\n"
    )
    (tmp_path / "b.toml").write_text("[training]\nseed = 2\nbatch_size = 48\nmax_steps = 20\n")
    monkeypatch.setenv("ELECTRA_TRAINING_BATCH_SIZE", "32")
    monkeypatch.setenv("ELECTRA_TRAINING_SEED", "3")
    recipe = load_recipe(
        "tiny", files=[tmp_path / "a.toml", tmp_path / "b.toml"], flags=["--seed", "4"]
    )
    training = recipe.training
    assert (training.eval_rows, training.max_steps, training.batch_size, training.seed) == (
        5,
        20,
        32,
        4,
    )
    assert training.save_steps == load_recipe("tiny").training.save_steps


def test_an_error_names_the_file_that_holds_the_mistake(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text('[training]\nseed = "7"\n')
    with pytest.raises(UserError) as refusal:
        load_recipe("tiny", files=[mine], flags=["--batch-size", "16"])
    assert str(refusal.value) == f"{mine}: training.seed must be a whole number, found str '7'"


def test_values_that_clash_are_refused_with_every_place_they_came_from() -> None:
    with pytest.raises(
        UserError, match=wording("values_that_clash_are_refused_with_every_place_they_came_from")
    ):
        load_recipe("tiny", flags=["--encoder.heads", "3"])


# ---- writing and comparing -----------------------------------------------------------------------


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_written_as_toml_reads_back_as_itself(tmp_path: Path, name: str) -> None:
    recipe = load_recipe(name)
    (tmp_path / "again.toml").write_text(as_toml(recipe))
    assert load_recipe(str(tmp_path / "again.toml")) == recipe


def test_what_is_none_is_left_out_and_comes_back_as_none() -> None:
    assert "lock" not in as_dict(make())
    assert build(Bicycle, as_dict(make()), source="x") == make()


def test_differences_are_dotted_keys_whichever_side_they_stand_on() -> None:
    ours, theirs = {"a": {"x": 1, "y": 2}, "b": 3}, {"a": {"x": 1, "y": 5}, "c": 4}
    assert differing_keys(ours, theirs) == differing_keys(theirs, ours) == ["a.y", "b", "c"]


def test_merging_changes_no_layer() -> None:
    below, above = {"a": {"x": 1}}, {"a": {"y": 2}}
    assert merge(below, above) == {"a": {"x": 1, "y": 2}}
    assert (below, above) == ({"a": {"x": 1}}, {"a": {"y": 2}})


def test_a_key_that_two_members_of_a_union_share_is_one_key() -> None:
    assert load_recipe("tiny", flags=["--rate", "0.2"]).objective.masking.rate == 0.2


def test_every_key_of_a_recipe_is_listed_once() -> None:
    keys = list(setting_keys(Recipe))
    assert len(keys) == len(set(keys))
    assert {"objective.generator.fraction", "objective.masking.rate", "training.seed"} <= set(keys)


def test_a_fingerprint_does_not_depend_on_the_order_of_keys() -> None:
    assert fingerprint({"a": 1, "b": 2}) == fingerprint({"b": 2, "a": 1}) != fingerprint({"a": 1})
