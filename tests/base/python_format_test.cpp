// SPDX-License-Identifier: MIT
#include "base/python_format.h"

#include <catch2/catch.hpp>
#include <limits>

namespace dalle2 {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

TEST_CASE("numbers in a template have the form that Python gives them") {
  struct Case {
    FormatValue value;
    const char* spec;
    const char* expected;  // Python's format(value, spec)
  };
  for (const Case& one : {Case{int64_t{-3}, "06d", "-00003"},
                          Case{int64_t{7}, "3d", "  7"},
                          Case{int64_t{12345}, "3d", "12345"},
                          Case{int64_t{7}, "0d", "7"},
                          Case{int64_t{7}, "06.1f", "0007.0"},
                          Case{int64_t{3}, ".1e", "3.0e+00"},
                          Case{int64_t{3}, "f", "3.000000"},
                          Case{int64_t{9007199254740993}, ".1f", "9007199254740992.0"},
                          Case{-0.0, ".2f", "-0.00"},
                          Case{2.5, ".0f", "2"},
                          Case{0.125, "08.2f", "00000.12"},
                          Case{1e-7, "10.3f", "     0.000"},
                          Case{12345.678, ".2e", "1.23e+04"},
                          Case{-12345.678, "012.3e", "-001.235e+04"},
                          Case{kInfinite, "06.1f", "000inf"},
                          Case{-kInfinite, "07.1f", "-000inf"},
                          Case{-kInfinite, "02.1f", "-inf"},
                          Case{kInfinite, "6.1f", "   inf"},
                          Case{-std::numeric_limits<double>::quiet_NaN(), "5.1f", "  nan"}}) {
    CAPTURE(one.spec);
    CHECK(python_format("a{x:" + std::string(one.spec) + "}b", {{"x", one.value}}) ==
          "a" + std::string(one.expected) + "b");
  }
}

TEST_CASE("a value without a spec has Python's text") {
  const FormatFields fields = {{"epoch", int64_t{-3}},
                               {"loss", 0.1},
                               {"best", kInfinite},
                               {"next_task", std::string("train")},
                               {"losses", std::vector<double>{0.5, 3}},
                               {"none", std::vector<double>{}}};
  CHECK(python_format("{{{epoch}}}_{loss}_{best}_{next_task}", fields) == "{-3}_0.1_inf_train");
  CHECK(python_format("{losses}_{losses[1]}_{losses[0]:.2f}_{none}", fields) ==
        "[0.5, 3.0]_3.0_0.50_[]");
}

TEST_CASE("another form is refused with the field and the forms there are") {
  const FormatFields fields = {{"epoch", int64_t{3}},
                               {"loss", 0.5},
                               {"next_task", std::string("train")},
                               {"losses", std::vector<double>{0.5}}};
  for (const char* inside :
       {"epoch:>5",   "epoch:,",      "epoch:+d",      "epoch:x",     "epoch:05",      "epoch:",
        "epoch:.3d",  "epoch:1000d",  "epoch:.f",      "epoch:d ",    "epoch!r",       "epoch!s:3d",
        "epoch.real", "epoch[0]",     "loss:d",        "loss:%",      "loss:.1000f",   "loss:z.2f",
        "loss:g",     "next_task:s",  "next_task:03d", "losses:.3f",  "losses[x]",     "losses[-1]",
        "losses[0",   "losses[0][0]", "losses.0]",     "losses[0]!s", "epoch:{loss}3d"}) {
    CAPTURE(inside);
    const auto fault = python_format_fault("{" + std::string(inside) + "}", fields);
    REQUIRE(fault);
    CHECK_THAT(*fault,
               Catch::StartsWith("'{" + std::string(inside).substr(0, 11)) &&
                   Catch::Contains("{name}, {list[0]}, {name:06d} of a whole number, {name:.3f} "
                                   "and {name:.2e} of a number"));
  }
}

TEST_CASE("an unknown placeholder is told with the known ones and the one that was meant") {
  const FormatFields fields = {{"epoch", int64_t{3}}, {"samples_seen", int64_t{64}}};
  CHECK_THROWS_WITH(python_format("{epcoh}.pth", fields),
                    Catch::Contains("{epcoh}") && Catch::Contains("did you mean {epoch}") &&
                        Catch::Contains("{samples_seen}"));
}

TEST_CASE("a template is judged by examples, whatever the length of a list will be") {
  const FormatFields empty = {{"losses", std::vector<double>{}}};
  CHECK(python_format_example("{losses[7]:.1f}", {{"losses", std::vector<double>{0.5}}}) == "0.5");
  CHECK(python_format_example("{losses[7]:.1f}", empty) == "0.0");
  CHECK_THROWS_WITH(python_format("{losses[0]}", empty),
                    Catch::Contains("the list has 0 entries now"));
  CHECK(python_format_fault("{losses[7]:.3f}", empty) == std::nullopt);
  CHECK(python_format_fault("{epoch", empty) ==
        "a '{' without its '}' in '{epoch': write '{{' for the brace itself");
}

TEST_CASE("the text between fields is cut at them") {
  CHECK(python_format_literals("a{epoch:03d}b{sample}") == std::vector<std::string>{"a", "b", ""});
  CHECK(python_format_literals("{{x}}") == std::vector<std::string>{"{x}"});
  CHECK(python_format_literals("") == std::vector<std::string>{""});
}

TEST_CASE("a float is shown with the fewest digits that give it back") {
  CHECK(python_repr(13.725955963134766) == "13.725955963134766");
  CHECK(python_repr(1) == "1.0");
  CHECK(python_repr(1e16) == "1e+16");
  CHECK(python_repr(-0.00001) == "-1e-05");
}

}  // namespace
}  // namespace dalle2
