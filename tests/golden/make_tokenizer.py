"""Writes tokenizer_plain.bin and tokenizer_special.bin: strings and their ids by `tokenizers`. Layout: README.md.

With --compare, llama.cpp's tokenizer (llama-cpp-python) is asked too and differences are printed.
"""

import random
import struct
import sys
import pathlib

from torch_models.gguf_model import Model, sample_path

HERE = pathlib.Path(__file__).parent

SENTENCES = """The quick brown fox jumps over the lazy dog.
I'll say it's what we've done, they'd agree; she'S not sure, it'LL do, don't.
Don’t use “curly” quotes—or… do?
Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich.
Le cœur déçu mais l'âme plutôt naïve, Louÿs rêva de crapaüter en canoë.
El pingüino Wenceslao hizo kilómetros bajo exhaustiva lluvia y frío.
Příliš žluťoučký kůň úpěl ďábelské ódy. Zażółć gęślą jaźń. Árvíztűrő tükörfúrógép.
Съешь же ещё этих мягких французских булок да выпей чаю.
Ξεσκεπάζω την ψυχοφθόρα βδελυγμία.
نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر
דג סקרן שט בים מאוכזב ולפתע מצא חברה
ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश
আমি কাচ খেতে পারি, তাতে আমার কোনো ক্ষতি হয় না।
நான் கண்ணாடி சாப்பிடுவேன், அதனால் எனக்கு ஒரு கேடும் வராது.
เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน
我能吞下玻璃而不伤身体。天地玄黃,宇宙洪荒。
いろはにほへと ちりぬるを ワタシハガラスヲタベラレマス。
키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다.
ვეპხის ტყაოსანი შოთა რუსთაველი Կրնամ ապակի ուտել
ሰማይ አይታረስ ንጉሥ አይከሰስ ᚠᛇᚻ᛫ᛒᛦᚦ᛫ᚠᚱᚩᚠᚢᚱ ខ្ញុំអាចញុំកញ្ចក់បាន ང་ཤེལ་ཟ་ན་
👩‍👩‍👧‍👦 👍🏽 🇩🇪🇯🇵 ❤️‍🔥 1️⃣ 🏴󠁧󠁢󠁳󠁣󠁴󠁿 🙂🙃 ☕️ 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𓀀𓁐
e\u0301 vs é, a\u0308\u0323, Z\u0351\u036b\u0343a\u0363l\u0348g\u0323o, ﬁ ﬂ Å Å ½ ² Ⅷ ① ٣٤٥ ९८७ １２３
\u00a0non\u2003breaking\u200bzero\u2009width\u3000ideographic\u2028line\u2029para\ufeffbom\u00adsoft
def f(x: int = 0) -> str:\n    return f"{x!r:>{10}}"  # comment\n\n\nclass A(B):\n\tpass
#include <stdio.h>\r\nint main(void)\r\n{\r\n\tprintf("%d\\n", 1 << 3);\r\n\treturn 0;\r\n}
for (let i = 0; i < arr.length; i++) { console.log(`${arr[i]} => ${i ** 2}`); } // ≠ ≤ ∑∫√
SELECT a.id, COUNT(*) AS n FROM "tab" a WHERE a.x <> 'it''s' GROUP BY 1 HAVING COUNT(*) > 10;
{"key": [1, 2.5e-10, null, true], "näme": "va\\u00fcl\\n", "url": "https://example.org/a?b=c&d=%20#frag"}
<div class="x" id='y'>&nbsp;&lt;tag/&gt;</div><!-- c --> $x^2 + \\frac{1}{2} \\alpha$ | a | b |\n|---|---|
3.14159265358979 1,000,000 0x1F 1e-9 2024-02-29T23:59:59Z +49 (0)30 1234567 192.168.0.1 v1.2.3-rc4 50% $5 №7
<|im_start|>user\nhello<|im_end|>\n<|endoftext|> <repo_name>x<file_sep> <|im_start <|im_end|
THE ALL CAPS camelCase PascalCase snake_case_name kebab-case-name SCREAMING_SNAKE x1y2z3 a1b22c333
!!! ??? ... --- ___ *** ### @@@ ^^^ ~~~ ``` === +++ ;;; ::: ,,, ((( ))) [[[ ]]] {{{ }}} <<< >>> /// \\\\\\ ||| &&&"""


def strings():
    rng = random.Random(20250706)
    base = SENTENCES.split("\n")
    base = [s.replace("\\n", "\n").replace("\\r", "\r").replace("\\t", "\t") for s in base]
    out = ["", " ", "  ", "   ", "\n", "\n\n", "\r\n", "\r\n\r\n", "\t", " \t \n ", "a", "é", "你", "🙂", "\u0301", "\u200d", "\x00",
           "\x7f", "a\x00b", "0", "00", "0123456789", " 1", "1 ", " 12 345", "'", "'s", "'S", "''s", " 's", "it's", "I'm 'll", "'re've",
           "\ufeff", "\ufffd", "\U0010ffff", "\ue000", "\xad", "\xa0", "\xa0\xa0x", "\u3000", "\u2028", "\x85", "\x1c", "\x0b\x0c", "x \u3000 y"]
    out += base
    out += [s for line in base for s in (" " + line, line + " ", "\n" + line + "\n", line.upper(), line.lower())]
    spaces = [" ", "  ", "   ", "    ", "\t", "\t\t", "\n", "\n\n", "\r\n", "\r", " \n", "\n ", "\n    ", "\n\t", "\xa0", "\u3000", "\u2003", " " * 17, " " * 65]
    words = sorted({w for line in base for w in line.split()})
    while len(out) < 1150:  # words joined by runs of white space
        out.append("".join(rng.choice(words) + rng.choice(spaces) for _ in range(rng.randrange(1, 9))))
    pieces = ["1", "23", "456", "a", "Z", "é", "ß", "你", "の", "א", "ع", "ก", "😀", "\u200d", "\ufe0f", "\u0301", "'", "'s", "'t", "’", "_", "-", ".", "!",
              "<|im_end|>", "<|endoftext|>", "²", "½", "٣", "९", "Ⅷ", " ", "  ", "\n", "\t", "\r\n", "\\", "\"", "`", "€", "∑", "\x01", "\u0e33", "ſ", "K"]
    while len(out) < 1650:  # every kind of character beside every other
        out.append("".join(rng.choice(pieces) for _ in range(rng.randrange(2, 14))))
    ranges = [(0x20, 0x7F), (0xA0, 0x250), (0x370, 0x530), (0x590, 0x700), (0x900, 0xE00), (0xE00, 0x1100), (0x1E00, 0x2100), (0x2100, 0x2C00),
              (0x3000, 0x3100), (0x4E00, 0xA000), (0xAC00, 0xD7A0), (0xFE00, 0xFFF0), (0x1F300, 0x1FB00), (0x10000, 0x10400), (0x1D400, 0x1D800), (0x20000, 0x20200)]
    while len(out) < 1985:  # random code points, assigned or not
        lo, hi = rng.choice(ranges)
        out.append("".join(chr(rng.randrange(lo, hi)) for _ in range(rng.randrange(1, 24))))
    out += ["a" * 300, "ab" * 400, " " * 500, "\n" * 300, "0" * 257, "🙂" * 100, "你好" * 150, "é" * 301, "x " * 400, "-" * 700,
            "\r\n" * 99, " \n" * 99, "".join(base)[:3000], "\u0301" * 120, "Aa" * 333]
    assert len(out) == 2000
    return out


def special_strings():
    rng = random.Random(7)
    out = ["<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n", "<|endoftext|>", "<|im_end|><|im_end|>", "a<|im_end|>b", " <|im_end|> ",
           "<|im_start|><|im_start", "<|IM_END|>", "<repo_name>r<reponame>", "x<|im_end|>1<|im_end|>\n", "", "plain", "<|im_end|>\n\n<|im_end|> é"]
    parts = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<repo_name>", "<file_sep>", "user\n", " hi ", "\n", "12", "é🙂", "<|", "|>", "system\nBe brief.", "  "]
    while len(out) < 120:
        out.append("".join(rng.choice(parts) for _ in range(rng.randrange(1, 9))))
    return out


def write(path, rows):
    with open(path, "wb") as f:
        f.write(b"SLTK" + struct.pack("<I", len(rows)))
        for text, ids in rows:
            data = text.encode()
            f.write(struct.pack("<II", len(data), len(ids)) + data + struct.pack(f"<{len(ids)}H", *ids))


def compare(path, model, rows, special):
    import llama_cpp

    lm = llama_cpp.Llama(path, vocab_only=True, verbose=False)
    n = 0
    for text, ids in rows:
        theirs = lm.tokenize(text.encode(), add_bos=False, special=special) if text else []
        if theirs != ids:
            n += 1
            if n <= 40:
                print("differs:", ascii(text[:80]), ids[:20], theirs[:20])
    print(f"llama.cpp differs on {n} of {len(rows)}")


def main():
    path = sample_path()
    model = Model(path)
    for name, texts, special in (("plain", strings(), False), ("special", special_strings(), True)):
        t = model.tokenizer(special)
        rows = [(s, t.encode(s, add_special_tokens=False).ids) for s in texts]
        back = [s for s, ids in rows if t.decode(ids, skip_special_tokens=False) != s]
        print(f"{name}: {len(rows)} strings, {sum(len(i) for _, i in rows)} ids, {len(back)} do not come back", [ascii(b) for b in back][:8])
        write(HERE / f"tokenizer_{name}.bin", rows)
        if "--compare" in sys.argv:
            compare(path, model, rows, special)


if __name__ == "__main__":
    main()
