"""Features of chat templates in small pieces: the inputs of make_cases.py."""

CONTEXT = {"messages":[{"role":"system","content":" Be brief. "},{"role":"user","content":"Hi <b> & \"you\" é ☃ 😀"},{"role":"assistant","content":None,"tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":{"a":1,"b":[1.5,None,True],"c":"é\n\"x\""}}}]},{"role":"tool","content":"42","name":"f"}],
"tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"a":{"type":"integer"},"b":{"type":"array","items":{"type":"string"}}},"required":["a"]}}}],
"bos_token":"<s>","eos_token":"</s>","add_generation_prompt":True,"d":{"b":2,"a":1,"items":"K"},"xs":[3,1,2],"s":"Hello World","n":None,"f":1.5,"users":[{"name":"bob","age":3,"x":{"y":1}},{"name":"Al","age":2,"x":{"y":0}},{"name":"cy","age":3,"x":{"y":2}}]}

# an expression per line, each rendered as {{ expression }}
EXPRESSIONS = r'''
1 + 2 * 3 - 4 / 2
7 // 2 ~ -7 // 2 ~ 7 % 3 ~ -7 % 3 ~ 7 % -3
-7 // 2
-7 % 3
7.5 // 2
-7.5 % 2
2 ** 3 ** 2
-2 ** 2
2 ** -1
1 / 3
10 / 2
1e16
1e15
1.5e-5
0.0001
123456789.123
1_000
0x1F + 0b11 + 0o17
true and false or 1
none or 'x'
not 1 == 2
not true
1 < 2 < 3
1 < 3 < 2
'a' in 'abc'
'z' not in 'abc'
1 in [1,2]
'a' in d
'q' in undef
undef
undef ~ 'x'
undef is defined
undef.foo
undef()
d.zz
d.zz.yy
d['a']
d.a
d['items']
d.items()
d.keys()
d.values()
d.keys()|list
d.items()|list
d.get('a')
d.get('q')
d.get('q', 7)
xs[0] ~ xs[-1]
xs[5]
xs[1:]
xs[:-1]
xs[::-1]
xs[::2]
s[1:4]
s[::-1]
s[-3:]
s[::2]
'é☃😀x'[1:3]
'é☃😀x'[::-1]
'é☃😀x'[-2]
'é☃😀x'|length
(1,2,3)
(1,)
()
(1)
[1,'a',"it's",'q"q',none,true,1.0,[2],{'k':'v'}]
{'a':1,'b':[1,2]}
{1:2,none:3,(1,2):4}
{}
[]
'a' 'b'
"tab\tnl\n\x41\u00e9\U0001F600\q\\"
'%s-%d-%5.2f-%x' % ('a', 3, 2.5, 255)
'%(a)s' % {'a': 1}
'%5s|%-5s|%05d' % ('a','b',3)
'%s' % 'x'
'%s' % [1]
'%%'
'a' * 3
[1] * 2
2 * 'ab'
[1] + [2]
'a' + 1
1 + 'a'
'a' + 'b'
'a' ~ 1 ~ none ~ true
'yes' if true else 'no'
'yes' if false
1 if 0 else 2 if 0 else 3
xs|sort
xs|sort(reverse=true)
['b','A','c']|sort
['b','A','c']|sort(case_sensitive=true)
users|sort(attribute='age')|map(attribute='name')|list
users|sort(attribute='age,name')|map(attribute='name')|list
users|map(attribute='x.y')|list
users|map(attribute='q', default='z')|list
users|selectattr('age','equalto',3)|map(attribute='name')|join(', ')
users|selectattr('age')|list|length
users|rejectattr('age','gt',2)|map(attribute='name')|join
users|selectattr('name','in',['bob','cy'])|list|length
xs|select('odd')|list
xs|reject('odd')|list
xs|select|list
xs|map('string')|join('+')
['a','b']|map('upper')|list
['a','b']|map('replace','a','z')|list
xs|max ~ xs|min ~ xs|sum
users|sum(attribute='age')
users|max(attribute='age')
[]|max
xs|first ~ xs|last
[]|first
xs|reverse|list
s|reverse
s|upper ~ s|lower ~ s|title ~ s|capitalize
'hello-world (foo) [bar] it\'s'|title
'hello-world it\'s'.title()
'ß'|upper
' a b '|trim
'xxaxx'|trim('x')
'xxaxx'.strip('x')
'  a '.lstrip() ~ '|' ~ '  a '.rstrip() ~ '|'
'a,b,,c'.split(',')
' a  b c '.split()
' a  b c '.split(none, 1)
'a,b,c'.split(',', 1)
'a,b,c'.rsplit(',', 1)
'a\nb\r\nc'.splitlines()
'a=b=c'.partition('=')
'a=b=c'.rpartition('=')
'abc'.partition('z')
'abc'.startswith('a') ~ 'abc'.endswith('c') ~ 'abc'.startswith(('x','a'))
'abcabc'.find('c') ~ 'abcabc'.rfind('c') ~ 'abc'.find('z') ~ 'abcabc'.find('a',1)
'abcabc'.count('bc') ~ 'abc'.index('b')
'abc'.index('z')
'abc'.replace('b','X') ~ 'aaa'.replace('a','b',2) ~ 'abc'.replace('','-')
'-'.join(['a','b'])
'-'.join([1])
'12'.isdigit() ~ 'ab'.isalpha() ~ 'a1'.isalnum() ~ ' '.isspace() ~ 'A'.isupper() ~ 'a'.islower()
'{} {}'.format(1,'b')
'{0} {1} {0} {x}'.format(1,2,x=3)
'{{}}'.format()
'7'.zfill(3) ~ 'a'.ljust(3) ~ '|' ~ 'a'.rjust(3,'.')
'abc'.removeprefix('a').removesuffix('c')
s|replace('o','0')
s|replace('o','0',1)
s|length
s|count
d|length
n|length
undef|length
s|list
d|list
d|dictsort
d|dictsort(reverse=true)
d|dictsort(by='value')
d|items|list
undef|items|list
d|tojson
d|tojson(indent=2)
messages|tojson
messages|tojson(indent=4)
messages|tojson(indent='-é')
xs|tojson(indent='')
strftime_now('%Y[%z%Z]')
namespace(_x=1)
namespace({'_x': 1})
namespace(x_=1).x_
tools|tojson
[]|tojson(indent=2) ~ {}|tojson(indent=2)
[1,[2,[]],{}]|tojson(indent=1)
'é\x00\x1f\x7f"\\/<>&'|tojson
'é😀'|tojson(ensure_ascii=true)
d|tojson(sort_keys=true)
d|tojson(separators=(',',':'))
undef|tojson
1.0|tojson ~ 1e100|tojson ~ none|tojson
xs|map('string')|tojson
undef|default('x') ~ ''|default('y') ~ ''|default('y', true) ~ none|d('q') ~ none|d('q', boolean=true)
'42'|int ~ '4.7'|int ~ 'x'|int ~ 'x'|int(5) ~ 3.9|int ~ ' 42 '|int ~ '1_0'|int
'ff'|int(base=16) ~ '0xff'|int(0,16)
none|int(3)
'4.5'|float ~ 'x'|float ~ 3|float ~ '1e3'|float
42.55|round ~ ' ' ~ 42.55|round(1) ~ ' ' ~ 42.55|round(1,'floor') ~ ' ' ~ 42.51|round(method='ceil') ~ ' ' ~ 2.5|round ~ ' ' ~ 3|round ~ ' ' ~ 2.675|round(2)
-3|abs ~ (-3.5)|abs
'a\nb\n\nc'|indent
'a\nb\n\nc'|indent(2, true)
'a\nb\n\nc'|indent('>>', blank=true)
'a\nb\n'|indent(2)
'<a href="x">\'&'|escape
'<a>'|e
'<a>'|safe
'%s is %s'|format('a', 1)
'%(x)s'|format(x=3)
'foo bar baz qux'|truncate(9)
'foo bar baz qux'|truncate(9, true)
'foo bar baz qux'|truncate(11)
'foo bar baz qux'|truncate(11, false, '...', 0)
'a b,c d_e'|wordcount
'abc'|center(10) ~ '|' ~ 'abcd'|center(9) ~ '|'
'a b/é?'|urlencode
[1,2,3,4,5]|batch(2)|list
[1,2,3,4,5]|batch(2,'x')|list
[1,2,3,4,5]|slice(2)|list
[1,1,2,'a','A']|unique|list
users|groupby('age')
users|groupby('age')|map(attribute='grouper')|list
users|groupby('age')|map('first')|list
users|groupby('age')|map('last')|list|length
xs|join(',')
users|join(',', attribute='name')
none|string ~ 1.0|string
none|trim
undef|trim
xs is iterable ~ xs is sequence ~ d is mapping ~ s is string ~ n is none ~ f is number ~ f is float ~ 1 is integer ~ true is boolean ~ true is number ~ true is integer
undef is iterable ~ undef is sequence ~ undef is none ~ undef is string
d is sequence ~ d is iterable ~ 1 is iterable ~ range(2) is sequence ~ d.items() is sequence ~ d.items() is iterable
xs|map('int') is iterable
3 is odd ~ 4 is even ~ 9 is divisibleby 3 ~ 9 is divisibleby(2)
1 is eq 1 ~ 1 is equalto 2 ~ 1 is ne 2 ~ 1 is lt 2 ~ 2 is ge 2 ~ 1 is in [1]
1 is not in [1]
'a' is lower ~ 'A' is upper
true is true ~ false is false ~ 1 is true ~ 1 is sameas 1 ~ none is sameas none
'upper' is filter ~ 'nope' is filter ~ 'odd' is test
d.a is defined and d.zz is not defined
not d.zz is defined
range is callable
range(3)|list ~ range(1,7,2)|list ~ range(5,0,-2)|list ~ range(3) ~ range(1,5,3)
range(10)[2] ~ range(10)[-1] ~ range(5)[1:3]|list
range(3)|length
dict(a=1,b=2)
dict({'a':1}, b=2)
dict([('a',1)])
namespace(a=1).a
namespace(a=1)
namespace({'x':1}).x
1 == 1.0 ~ true == 1 ~ 'a' == 'a' ~ [1] == [1.0] ~ {'a':1} == {'a':1} ~ (1,) == [1] ~ none == none ~ undef == undef
1 != 2 ~ 'a' < 'b' ~ [1,2] < [1,3] ~ 'Z' < 'a'
1 < 'a'
none < 1
undef < 1
xs.0 ~ xs.2
d['b':]
n.foo
n['foo']
1 .foo
(5).foo
s.foo
s.foo.bar
s['upper']()
xs.append(4)
d.update({'a':2})
d.pop('a')
xs['append']
s.__class__
messages[0].content|trim|length
messages[-1]['role']
messages|length
messages[0]['content'].strip().upper()[:3]
(messages|selectattr('role','equalto','user')|list)[0].content
messages|selectattr('role','equalto','nope')|first
(messages|map(attribute='role')|unique|list)[-1]
strftime_now('%d %b %Y') ~ strftime_now('%Y-%m-%d %H:%M:%S.%f')
strftime_now('%A %B %j %-d %e')
raise_exception('bad ' ~ 1)
joiner('|')() ~ 'x'
cycler(1,2).next()
xs|nope
xs is nope
xs|sort|list|first|string|length
-xs|first
-3|abs
+3
-'a'
- f
'a' 'b' ~ 'c'
'x' is string and 'y' is string
{'a': {'b': {'c': 5}}}.a.b.c
[[1,2],[3,4]][1][0]
'abc'[1]
'abc'[10]
'abc'[1.5]
[1,2]['a']
xs[none]
xs|random2
{'a':1}|length
{**d}
[*xs]
xs[undef]
1 if undef else 2
'a,b'|replace(',', undef)
undef|upper
undef|int
none|float
none|upper
[1,2]|upper
1|length
xs|join(undef)
(1,2)|join('-')
'abc'|join('-')
'abc'|first ~ 'abc'|last
d|first
d|last
d|max
[none, 1]|sort
[[2],[1]]|sort
['a', 1]|sort
[1,2,3]|sum(start=10)
['a']|sum
[0.1,0.2]|sum
5 // 0
5 / 0
5 % 0
5.0 / 0
1e308 * 10
(1e308*10)|tojson
[1.0, 1e22, 1.1e-7, 3.14, 100.0, 1e5]
9007199254740993
"it's"
["it's", 'a"b', "it's \"q\""]
['\n\t\x00\x7f\xa0\u200b\u2028é😀']
'\101\0'
"a\
b"
loop
caller
'%d' % 3.7
'%i' % true
'%e' % 12345.678
'%g' % 0.00001
'%s %s' % (1,)
'%s' % (1,2)
'%r' % 'a'
'%c' % 'x'
'%10.3s|' % 'abcdef'
'%+d % d' % (3, 4)
'%#x' % 255
'%.3d' % 5
'abc' is not string
true is not none
'x' is none or 'y' is string
1 in (1,2) and 2 in (1,2)
1 in [1] == true
[1,2,3][1:][0]
('a' ~ 'b').upper()
"a".join(("b","c"))
xs[-5:] ~ xs[5:] ~ xs[2:1]
xs[::-2]
xs[1:0:-1]
'hello'[4:1:-1]
3 * [0]
-1 * 'a'
1.5 * 2
true + true
true * 3
-true
2 ** 0.5
2 ** 62
10 ** 18
'x' * 0
7 // 2.0
0.1 + 0.2
1e3
1E3
100000000000000000.0
1 .__class__
foo.bar is defined
d.a.b is defined
d.a.b
d.x.y is defined
messages is defined and messages
messages|tojson|length
[{'a':1},{'a':2}]|map(attribute='a')|sum
'A'|lower == 'a'
none is none
'a' if d.q is defined else 'b'
d.items()|first
d.items()|length
(d.items()|list)[0][1]
d.values()|sum
'  x'|indent(first=true)
xs|tojson(indent=2)
xs|tojson(indent=0)
'\u2028'|tojson
{'1':1, 1:2, 1.5:3, none:4, true:5}|tojson
"a" "b"|upper
xs|list|tojson|safe
messages[1].content|e
d|attr('a')
users|map(attribute='name')|map('length')|list
[('a',1),('b',2)]|map('first')|list
[3,1]|sort ~ 'x'
xs is sameas xs
1.0 is integer
'5' is number
'abc'.upper().lower().title()
'İ'|lower
'ǆ'|title
'ΑΣ'|lower
'a\x1cb'.split()
'a\x0bb'.splitlines()
007
1__0
1.
.5
1.e5
1..upper
"abc
[1,2
{'a' 1}
f(
1 +
1 2
a.
a..b
x|
x is
not
'a' is string is defined
1 if
1 if 2 else
lambda
(1,2
xs[1
xs[1:2:3:4]
f(a=1,2)
f(*xs,1)
f(**d,*xs)
range(**{'q':1})
range()
range(1,2,3,4)
range(1,2,0)
range('a')
namespace(1)
trim(x)
xs|trim(1)
'a'|trim(x=1)
'a'|replace('a')
'a'|replace('a','b','c')
'a'|upper(1)
'a'.upper(1)
'a'.split(sep=',')
'a'.split(1)
'a'.startswith(1)
'a'.startswith(undef)
dict(a=1)(2)
1()
d.get()
d.get([1])
{[1]:2}
[1] in d
1 in 5
1 in 'a'
undef in 'a'
undef in [1]
undef + 1
1 + undef
undef * 2
-undef
undef[0]
undef[1:]
undef|first
undef|list
undef|join
undef|sort
undef|sum
undef|map('upper')|list
undef|selectattr('a')|list
undef|replace('a','b')
undef|title
undef|round
undef|abs
undef|float
undef|string
undef|indent
undef|format
undef|tojson
undef|dictsort
undef|unique|list
undef|batch(2)|list
undef == none
undef == ''
undef is eq none
undef > 1
not undef
undef and 1
undef or 1
'' ~ undef
[undef]
{'a': undef}
(undef, 1)
[undef]|tojson
'%s' % undef
'{}'.format(undef)
[undef]|join
range(4)[::2] ~ range(9, 0, -2)[1:3] ~ range(5)[::-1]|list
none|map('upper')|list
0|select|list
xs|map('string')|reverse
undef|truncate(5)
1|indent
n[1:]
(1,2)[1:] ~ [1,2][::-1]
undef.a|default('x')
(undef.a)|default('x')
d.q|default('x')
d.q.r|default('x')
'a'|safe + '<b>'
'<b>' + 'a'|safe
'<b>' + ('<i>'|safe)
('<i>'|safe) + 1
('<i>'|safe) + none
1 + ('<i>'|safe)
('<i>'|safe) + ('<b>'|safe) + '&'
'&' + '<i>'|safe + '&'
('a'|safe) ~ '<'
'<' ~ ('a'|safe) ~ '&' + 'x'
('<'|e) + '<'
'<'|e|e
'<'|e|forceescape
'<'|safe|e
'<'|safe|forceescape
'<'|safe|string|e
'<'|e|string + '<'
'<'|e|upper
'<'|e|upper + '<'
'<A>'|safe|lower + '<'
'<a>'|safe|capitalize + '<'
'<a>'|safe|title + '<'
' <a> '|safe|trim + '<'
'<a>'|safe|center(7) + '<'
'<a>\nb'|safe|indent(2) + '<'
'<a>\nb'|safe|indent('>') + '<'
'<a>\nb'|safe|indent(2, true, true) + '<'
'<%s>'|safe|format('<') + '<'
'<%s>'|format('<'|safe) + '<'
'a<b c<d e'|safe|truncate(6, false, '<', 0) + '<'
'a<b'|safe|truncate(9) + '<'
'<'|safe|replace('<', '&') + '<'
'<'|safe|reverse + '<'
'<>'|safe|first + '<'
'<>'|safe|last + '<'
'<>'|safe|list
'<>'|safe|default('x') + '<'
undef|default('<'|safe) + '<'
'<>'|safe|tojson + '<'
'<>'|safe|urlencode + '<'
'<>'|safe|length
'<>'|safe|wordcount
['<'|safe, '<']|join + '<'
['<'|safe, '<']|join('&'|safe) + '<'
['<'|safe, '<']
{'k': '<'|safe}
('<'|safe,)
['<'|safe, '<']|tojson
'<>'|safe == '<>'
'<'|safe in ['<']
'<'|safe in '<<'
{'a': 1}['a'|safe]
'<'|safe < '='
('<'|safe) * 2 + '<'
2 * ('<'|safe) + '<'
('<%s>'|safe) % '<'
('<%s>'|safe) % ('<'|safe)
('<%s %s>'|safe) % ('<', 1)
('<%s>'|safe) % (('<',),)
('<%(a)s>'|safe) % {'a': '<'}
('<%r>'|safe) % '<'
('<%5s|%-5s|%.1s>'|safe) % ('<', '<', '<')
('%d %i %5.2f'|safe) % (1.5, 2, 3)
('%d'|safe) % 'x'
('%s %s'|safe) % '<'
'<%s>' % ('<'|safe) + '<'
('<%%>'|safe) % ()
('<'|safe).upper() + '<'
('<A'|safe).lower() + '<'
('<a'|safe).title() + '<'
('<a'|safe).capitalize() + '<'
('<a '|safe).strip() + '<'
('<a '|safe).lstrip('<') + '<'
('<a '|safe).rstrip() + '<'
('<a<'|safe).replace('a', '&') + '<'
('<a<'|safe).replace('<', '&', 1) + '<'
('<a<'|safe).replace('', '&')
'<a<'.replace('a', '&'|safe) + '<'
('<a'|safe).removeprefix('<') + '<'
('<a'|safe).removesuffix('a') + '<'
('<a<b'|safe).split('<')
('<a b'|safe).split()
('<a<b'|safe).rsplit('<', 1)
('<a\n<b'|safe).splitlines()
('<a<b'|safe).partition('a')
('<a<b'|safe).partition('z')
('<a<b'|safe).rpartition('<')
('<a<b'|safe).rpartition('z')
('<'|safe).join(['<', '&'|safe, 'x']) + '<'
('<'|safe).join(['<', 1])
'<'.join(['<', '&'|safe]) + '<'
('<a'|safe).ljust(4) + '<'
('<a'|safe).rjust(4, '.') + '<'
('<a'|safe).ljust(4, '<')
('1'|safe).zfill(3) + '<'
('<a'|safe).casefold() + '<'
('<{}>'|safe).format('<') + '<'
('<{}>'|safe).format('<'|safe) + '<'
('<{} {a}>'|safe).format(1, a='&')
'<{}>'.format('<'|safe) + '<'
('<a'|safe).startswith('<')
('<a'|safe).find('a')
('<a'|safe).count('<')
('<a'|safe)[0] + '<'
('<a'|safe)[-1] + '<'
('<a'|safe)[0:1] + '<'
('<a'|safe)[::-1] + '<'
('<a'|safe)[5]
'<'|safe is escaped
'<' is escaped
'<'|e is escaped
('<'|e ~ 'a') is escaped
('<'|e + 'a') is escaped
'<'|safe is string
none|safe + '<'
1|safe + '<'
undef|safe + '<'
undef|e + '<'
1|e + '<'
[1, '<']|e
[1, '<']|safe
true|e
('a' if true else 'b')|safe + '<'
('<'|safe or 'x') + '<'
('<'|safe if true) + '<'
[('<'|safe)]|first + '<'
[('<'|safe)]|map('upper')|first + '<'
['<']|map('safe')|first + '<'
['<']|map('e')|join
['b'|safe, 'a']|sort
['<'|safe, '<']|unique|list
['<'|safe]|max + '<'
'"'|e
'\''|e
'&amp;'|e
'\x7f\x80\u00a0é😀'|tojson(ensure_ascii=true)
'\x7f\x80é'|tojson
'\x00\x01\x1f\x7e\x7f'|tojson
'\x00\x01\x1f\x7e\x7f'|tojson(ensure_ascii=true)
'\u2028\u2029\ufffd\uffff'|tojson(ensure_ascii=true)
'\U00010000\U0010ffff'|tojson(ensure_ascii=true)
'</script>&\'"\\/'|tojson
{'\x7f': '\x7f'}|tojson(ensure_ascii=true)
{'é\x00': 1}|tojson(ensure_ascii=true)
['\x7f']|tojson(ensure_ascii=true, indent=1)
{'b': 1, 'a': 2}|tojson(separators=('\x00', '='))
'a\x00b'
'a\x00b'|length
'a\x00b'|upper
'a\x00b'|replace('\x00', '-')
'a\x00b'.split('\x00')
'a\x00b'.partition('\x00')
'a\x00b'.find('b')
'a\x00b' == 'a'
'a\x00b' in ['a\x00b']
'a\x00b'|e
'a\x00b'|trim('\x00a')
'a\x00b'|list
'a\x00b'|urlencode
'a\x00b'|title
'a\x00b'|capitalize
'a\x00b'|indent
'a\x00b'|center(7)
'a\x00b'|wordcount
'a\x00b'|reverse
'a\x00b'[1] == '\x00'
'%s' % 'a\x00b'
'a\x00%s' % 1
'%s|%4s' % ('\x00', '\x00')
'a\x00{}'.format(1)
'{}'.format('\x00')
'\x00'.join(['a', 'b'])
['a', 'b']|join('\x00')
'a' ~ '\x00' ~ 'b'
'a\x00'.strip() ~ '|'
'\x00'|trim ~ '|'
'\x00a'.startswith('\x00')
'1\x00'|int
'1\x00'|float
'a\x00b'|truncate(2, true, '')
{'a\x00': 1}['a\x00']
{'a\x00': 1}['a']
{'a\x00': 1}
['\x00']
'a\x00b'.isalnum()
'\x00'|int(7)
12345678901234567890
-12345678901234567890
9223372036854775808
-9223372036854775808
-9223372036854775809
18446744073709551615|tojson
12_345_678_901_234_567_890
123456789012345678901234567890 == 123456789012345678901234567890
123456789012345678901234567890 == 123456789012345678901234567891
123456789012345678901234567890 > 5
5 > 123456789012345678901234567890
-123456789012345678901234567890 < 5
123456789012345678901234567890 < 123456789012345678901234567891
-123456789012345678901234567890 < -123456789012345678901234567891
100000000000000000000 == 1e20
100000000000000000001 == 1e20
100000000000000000001 > 1e20
1e20 < 100000000000000000001
9223372036854775808 == 9223372036854775808.0
9223372036854775807 == 9223372036854775808.0
-9223372036854775807 == -9223372036854775808.0
-9223372036854775807 > -9223372036854775808.0
(-9223372036854775807 - 1) == -9223372036854775808.0
[30000000000000000000, 2, -30000000000000000000]|sort
[30000000000000000000, 2]|max
[30000000000000000000, 2]|min
30000000000000000000 in [30000000000000000000]
{30000000000000000000: 1}
{30000000000000000000: 1}[30000000000000000000]
{1e20: 1}[100000000000000000000]
{30000000000000000000: 1}|tojson
30000000000000000000 is integer
30000000000000000000 is number
30000000000000000000 is float
30000000000000000000 is string
30000000000000000000|string|length
30000000000000000000 ~ 'x'
30000000000000000000|int
'30000000000000000000'|float
30000000000000000000|float
1e20|int
-1e22|int
-30000000000000000000|abs
30000000000000000000|abs
30000000000000000000|round
-(-30000000000000000000)
-(-9223372036854775808)
+30000000000000000000
30000000000000000000 * 1.5
30000000000000000000 + 0.5
30000000000000000000 if 30000000000000000000
'%d' % 30000000000000000000
'%s' % 30000000000000000000
'%25d|%-25d|' % (30000000000000000000, 30000000000000000000)
'{}'.format(30000000000000000000)
[30000000000000000000]
xs[30000000000000000000]
'a' + 30000000000000000000
'''.strip("\n").split("\n")

TEMPLATES = [
"a\n{% if true %}\n  b\n{% endif %}\nc\n",
"  {% if true %}x{% endif %}  \n  {%+ if true %}y{% endif +%}\nz",
"a {%- if true -%} b {%- endif -%} c",
"a\n  {#- c -#}  \nb {# x #}\nc\n   {# y #}   \nd",
"  {{ 1 }}\n  {{- 2 -}}  \n3",
"\n\n{% set x = 1 %}\n\n{{ x }}\n\n",
"{% raw %}\n{{ x }} {% if %}\n{% endraw %}\nz",
"a {%- raw -%}  q {{ 1 }} {%- endraw -%}  b",
"   {% raw %} x {% endraw %}\nq",
"{%- for m in messages %}{{ m.role }}:{{ loop.index }}/{{ loop.length }}{{ ',' if not loop.last }}{% endfor %}",
"{% for x in xs %}{{ loop.index0 }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.first }}{{ loop.last }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a','b') }}{{ loop.changed(x) }}{{loop.depth}}{{loop.depth0}};{% endfor %}",
"{% for x in [] %}a{% else %}empty{% endfor %}",
"{% for x in xs if x > 1 %}{{ x }}{{ loop.length }}{{loop.last}}{% else %}none{% endfor %}",
"{% for x in xs if x > 9 %}{{ x }}{% else %}none{% endfor %}",
"{% set ns = namespace(n=0) %}{% for x in xs %}{% set ns.n = ns.n + x %}{% endfor %}{{ ns.n }}",
"{% set ns = namespace() %}{% set ns._n = 1 %}{{ ns._n }}",
"{% set ns = namespace() %}{% set ns.n_ = 1 %}{{ ns.n_ }}",
"{% set n = 0 %}{% for x in xs %}{% set n = n + x %}{{ n }}{% endfor %}{{ n }}",
"{% for x in xs %}{% if x == 1 %}{% continue %}{% endif %}{{ x }}{% if x == 2 %}{% break %}{% endif %}{% endfor %}",
"{% for k, v in d.items() %}{{ k }}={{ v }};{% endfor %}",
"{% for k, v in d|dictsort %}{{ k }}={{ v }};{% endfor %}",
"{% for k in d %}{{ k }};{% endfor %}",
"{% for c in 'aé😀' %}{{ c }}-{% endfor %}",
"{% for a, (b, c) in [(1,(2,3))] %}{{ a }}{{ b }}{{ c }}{% endfor %}",
"{% for a, b in [(1,2,3)] %}{{ a }}{% endfor %}",
"{% for a, b in [(1,)] %}{{ a }}{% endfor %}",
"{% for x in 5 %}{% endfor %}",
"{% for x in undef %}{% else %}e{% endfor %}",
"{% for x in none %}{% endfor %}",
"{% for x in undef.y %}{% endfor %}",
"{% macro f(a, b=2, c='x') %}[{{ a }},{{ b }},{{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, c=3) }}{{ f(b=5, a=4) }}{{ f() }}",
"{% macro f(a) %}{% endmacro %}{{ f(1,2) }}",
"{% macro f(a) %}{% endmacro %}{{ f(q=2) }}",
"{% macro f(a) %}{% endmacro %}{{ f(1, a=2) }}",
"{% macro f(a) %}{{ varargs }}{{ kwargs }}{% endmacro %}{{ f(1,2,3,z=4) }}",
"{% macro f(a, b=a) %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}",
"{% macro f(n) %}{% if n > 0 %}{{ n }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(5) }}",
"{% macro f() %}{{ y }}{% endmacro %}{% set y = 3 %}{{ f() }}",
"{% set y = 1 %}{% macro f() %}{{ y }}{% set y = 9 %}{{ y }}{% endmacro %}{{ f() }}{{ y }}",
"{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}body{% endcall %}",
"{% macro f() %}<{{ caller(1, 2) }}>{% endmacro %}{% call(a, b=3) f() %}{{ a }}{{ b }}{% endcall %}",
"{% macro f() %}x{% endmacro %}{% call f() %}b{% endcall %}",
"{% macro f() %}<{{ caller() }}>{% endmacro %}{{ f() }}",
"{% set x %}a{{ 1 }}b{% endset %}{{ x }}{{ x|length }}",
"{% set x | upper | trim %} a{{ 1 }}b {% endset %}[{{ x }}]",
"{% filter upper %}abc{{ 'd' }}{% endfilter %}",
"{% filter replace('a','b')|upper %}abc{% endfilter %}",
"{% with a = 1, b = 2 %}{{ a }}{{ b }}{% endwith %}{{ a }}",
"{% set a = 5 %}{% with a = 1, b = a %}{{ a }}{{ b }}{% endwith %}{{ a }}",
"{% set a, b = 1, 2 %}{{ a }}{{ b }}",
"{% set a = 1, 2 %}{{ a }}",
"{% set (a, b) = (3, 4) %}{{ a }}{{ b }}",
"{% set a.b = 1 %}",
"{% set d.b = 1 %}",
"{% set ns = namespace() %}{% set ns.x = [1] %}{% set ns.x = ns.x + [2] %}{{ ns.x }}{{ ns }}",
"{% if true %}{% set q = 1 %}{% endif %}{{ q }}",
"{% if undef %}a{% elif 0 %}b{% elif 1 %}c{% else %}d{% endif %}",
"{% generation %}x{{ 1 }}{% set z = 2 %}{% endgeneration %}[{{ z }}]",
"{% for m in messages %}{% if m.tool_calls is defined and m.tool_calls %}{{ m.tool_calls[0].function.arguments|tojson }}{% endif %}{% endfor %}",
"{% set loop_messages = messages[1:] %}{% for m in loop_messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}{% endfor %}",
"{% set it = xs|map('string') %}{{ 'T' if it else 'F' }}{{ it|list }}{{ it|list }}",
"{% set it = xs|select('gt', 100) %}{{ 'T' if it else 'F' }}",
"{% set it = xs|map('string') %}{{ it|first }}{{ it|list }}",
"{% set ns = namespace(stop=false) %}{% for x in xs if not ns.stop %}{{ x }}{% set ns.stop = true %}{% endfor %}",
"{% set ns = namespace(stop=false) %}{% for x in xs if not ns.stop %}{{ x }}{{ loop.last }}{% set ns.stop = true %}{% endfor %}",
"{% for x in xs %}{% for y in xs %}{{ loop.index }}{% endfor %}{{ loop.index }}{% endfor %}",
"{% for x in xs %}{% set outer = loop %}{% for y in [1,2] %}{{ outer.index }}{{ loop.index }} {% endfor %}{% endfor %}",
"{% for x in range(3) %}{% macro g() %}{{ x }}{% endmacro %}{{ g() }}{% endfor %}",
"{% for x in xs %}{% set q = x %}{% endfor %}{{ q }}",
"{{ x }}{% set x = 1 %}{{ x }}",
"{% set x = 1 %}{% for i in [1,2] %}{{ x }}{% set x = 5 %}{{ x }}{% endfor %}",
"{% for i in [1,2] %}{% if i == 2 %}{{ y }}{% endif %}{% set y = i %}{% endfor %}",
"{{- bos_token }}\n{%- for m in messages -%}\n{{ m.role }}\n{% endfor -%}\n end",
"a\r\nb\rc\n{% if 1 %}\r\nd{% endif %}\r\n",
"{{ '\n' }}x{{ \"a\nb\" }}",
"{{ 1 }}\n\n",
"{{ 1 }}\n",
"{% if 1 %}\n\n\nx{% endif %}",
"{%if 1%}x{%endif%}",
"{{1}}{{-2}}",
"{{ {'a':{'b':1}} }}",
"{{ {'a':{'b':1}}}}",
"{# unclosed",
"{{ 1",
"{% if 1 %}",
"{% endif %}",
"{% if 1 %}{% endfor %}",
"{% foo %}",
"{% if %}{% endif %}",
"{% for x %}{% endfor %}",
"{% for x in xs %}{% else %}{% else %}{% endfor %}",
"{% break %}",
"{% for x in xs %}{% macro f() %}{% break %}{% endmacro %}{% endfor %}",
"{% set %}",
"{% set 1 = 2 %}",
"{% set true = 2 %}",
"{% macro 1() %}{% endmacro %}",
"{% macro f(a=1, b) %}{% endmacro %}",
"{% macro f %}{% endmacro %}",
"{% include 'x' %}",
"{% import 'x' as y %}",
"{% from 'x' import y %}",
"{% extends 'x' %}",
"{% if 1 %}{{ x|nope }}{% endif %}",
"{% if 0 %}{{ x|nope }}{% endif %}ok",
"{% if 0 %}{{ x is nope }}{% endif %}ok",
"{{ }}",
"{%  %}",
"}} %} #}",
"{ { % }",
"{{ '}}' }}",
"{{ '%}' }}{% if '%}' %}x{% endif %}",
"a{{ 1 }}b{#c#}d{% if 1 %}e{% endif %}f",
"{% if 1 -%}  x  {%- endif %}  y",
"   \n   {%- if 1 %} x{% endif %}",
"x   {% if 1 %}y{% endif %}",
"\t{% if 1 %}\n\ty\n\t{% endif %}\n\tz",
"\u00a0{% if 1 %}y{% endif %}",
"x\n\u00a0{% if 1 %}y{% endif %}",
"{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + (m['content'] or '') + '<|im_end|>' + '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
"{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\\n' + m['content'] + '<|im_end|>' + '\\n' }}{% endfor %}",
"{% set content = messages[1].content %}{% if '<b>' in content %}{{ content.split('<b>')[-1].lstrip('\\n ') }}{% endif %}",
"{% for m in messages[::-1] %}{{ m.role }}{% set i = (messages|length - 1) - loop.index0 %}{{ i }}{% endfor %}",
"{% do xs.append(1) %}",
"{% set x = namespace(a=[]) %}{% set x.a = x.a + [1] %}{{ x.a|length }}{{ x.b is defined }}{{ x.b }}",
"{%- macro t(s, i=0) -%}{%- if s is mapping -%}{%- for k, v in s|items -%}{{ ' ' * i }}{{ k }}:{{ t(v, i + 2) }}\n{% endfor -%}{%- elif s is iterable and s is not string -%}{% for v in s %}{{ t(v, i+1) }};{% endfor %}{%- else -%}{{ s }}{%- endif -%}{%- endmacro -%}{{ t(tools) }}",
"{% set ns = namespace(a=1) %}{% set ns2 = ns %}{% set ns2.a = 2 %}{{ ns.a }}",
"{% for i in range(3) %}{{ i }}{% if not loop.last %}, {% endif %}{% endfor %}",
"{% set x = loop %}",
"{{ messages | selectattr('role', 'in', ['user', 'tool']) | map(attribute='content') | map('trim') | join('|') }}",
"{{ messages|map(attribute='content')|select('string')|map('length')|sum }}",
"{% set m = dict(messages[0], x=1) %}{{ m.x }}{{ m.role }}",
"{% if messages[0].role == 'system' and messages[0].content is string %}{{ messages[0].content.strip() }}{% endif %}",
"{{ ('a', 'b')|join }}{{ ['x']|first|upper }}",
"line1\n    {%- if 1 %}\n   in\n    {%- endif %}\nline2",
"{% if 1 %}{# c #}\n{% endif %}x",
"{%- if 1 %}\n{#- c #}\n y {%- endif %}",
"{{ '\\u003c' }}{{ '\\x3c' }}{{ '\\\\n' }}{{ '\\'' }}{{ \"\\\"\" }}",
"{{ messages[0]['content']|replace('\\n', ' ')|trim }}",
"{% set a = [1,2,3] %}{{ a[loop] }}",
"{% macro m(x) %}{{ x }}{% endmacro %}{{ m|string|length > 0 }}{{ m is callable }}{{ m('a')|upper }}{{ m('a') ~ 'b' }}",
"{% set f = 'abc'.upper %}{{ f() }}",
"{{ [1,2,3]|map('string')|map('replace', '1', 'x')|join }}",
"{{ [[1,2],[3]]|map('join','-')|list }}",
"{{ [[1,2],[3]]|sum(start=[]) }}",
"{% for a in users|groupby('age') %}{{ a.grouper }}:{{ a.list|length }}{{ a[0] }};{% endfor %}{% for g, l in users|groupby('age') %}{{ g }}{{ l|map(attribute='name')|list }}{% endfor %}",
"{% set x = 1 if false %}[{{ x }}]{{ x is defined }}",
"{% for x in [[1,[2,[]]],[3]] recursive %}{{ x if x is number else '(' ~ loop(x) ~ ')' }}{{ loop.depth }}{{ loop.index }}{% else %}-{% endfor %}",
"{% for x in xs recursive %}{{ x }}{% if x == 1 %}{{ loop('ab') }}{% endif %}{{ loop.depth0 }}{% endfor %}",
"{% for x in xs %}{{ loop(xs) }}{% endfor %}",
"{% if (messages|length) > 1 and not (messages[0].role != 'system') %}y{% endif %}",
"{% for m in messages if m.role != 'system' %}{{ loop.index }}{{ m.role }}{{ loop.previtem.role if loop.previtem is defined }}{{ loop.nextitem.role if loop.nextitem is defined else 'end' }};{% endfor %}",
"{% for x in xs|reverse %}{{ x }}{{ loop.length }}{{ loop.revindex }}{% endfor %}",
"{% for x in xs|map('string') %}{{ x }}{{ loop.last }}{% endfor %}",
"{% set j = joiner(', ') %}{% for x in xs %}{{ j() }}{{ x }}{% endfor %}",
"{% set c = cycler('a','b') %}{% for x in xs %}{{ c.next() }}{{ c.current }}{% endfor %}{{ c.reset() }}{{ c.next() }}",
"{{ tools|tojson(indent=4) }}\n\n{{- '\n' }}{% for t in tools %}{{ t | tojson }}{{ '\n' }}{% endfor %}",
]

# longer, nasty on purpose
NASTY = [
# a JSON-schema walker with recursive macros, defaults and string building by namespace
"""{%- macro kind(s) -%}
{%- if s is string -%}{{ s }}{%- elif s is mapping and s.type is defined -%}
{%- if s.type == 'array' -%}{{ kind(s['items']) }}[]{%- elif s.type == 'object' -%}
{ {%- for k, v in s.properties.items() %}
  {{ k }}{{ '?' if k not in s.get('required', []) }}: {{ kind(v) }}{{ ',' if not loop.last }}
{%- endfor %} }
{%- else -%}{{ {'integer': 'number', 'string': 'string'}.get(s.type, 'any') }}{%- endif -%}
{%- else -%}any{%- endif -%}
{%- endmacro -%}
{% set ns = namespace(text='', n=0) %}
{% for t in tools %}
  {%- set f = t.function %}
  {% set ns.text = ns.text ~ f.name ~ '(' ~ kind(f.parameters)|trim ~ ')\n' %}
  {% set ns.n = ns.n + f.parameters.properties|length %}
{% endfor %}
{{ ns.text }}{{ ns.n }}
""",
# whitespace control at every edge
"""  {%- if true -%}
   a  {#- x -#}  b
  {%+ if true +%}
 c {{- 'd' -}} e
	{%- endif %}
   {# full line comment #}
  f {% endif %}
  g
    {{ 'h' }}
  {% for x in xs -%}
    {{ x }}
  {%- endfor +%}

  i {%- raw %} {{ j }} {%- k -%} {% endraw -%}   l
  """,
# scopes: loops, macros, with, set blocks, all writing the same name
"""{% set v = 'root' %}{% macro show(v='default') %}[{{ v }}{% set v = 'macro' %}/{{ v }}]{% endmacro %}
{% for x in xs %}{{ v }}{% set v = x %}{{ v }}{{ show() }}{{ show(v) }}{% with v = v * 10 %}{{ v }}{% set v = 'with' %}{% endwith %}{{ v }}
{% endfor %}{% set v %}<{{ v }}>{% endset %}{{ v }}{% set v | upper %}<{{ v }}>{% endset %}{{ v }}
{% if false %}{% set w = 1 %}{% endif %}{{ w is defined }}{% for w in [1] %}{% endfor %}{{ w }}""",
# break and continue through nested loops, filters that read a namespace the body writes
"""{% set ns = namespace(left=3, log=[]) %}
{% for m in messages if ns.left > 0 %}
{% set ns.left = ns.left - 1 %}
{% for c in m.content or 'none' %}
{% if c == ' ' %}{% continue %}{% elif c in '.o' %}{% break %}{% endif %}
{% set ns.log = ns.log + [loop.index ~ c] %}
{% else %}never{% endfor %}
{{ loop.index }}:{{ m.role }}{{ '' if loop.first else '<-' ~ loop.previtem.role }}
{% else %}empty{% endfor %}
{{ ns.log|join(' ') }} {{ ns.left }}""",
# Python's text of everything
r"""{{ [1, -2.50, 1e100, 1e-7, true, none, 'a\\b', "it's", 'say "hi"', 'both \' and "', '\x00\t\n', 'é☃😀', (1,), (), {}, [], {'k': (1, [2, {'z': none}])}, 0.1 + 0.2, 1/3, -0.0, 100000000000000000000.0] }}
{{ 'a' ~ 1.0 ~ none ~ [none] ~ {'a': 'b'} ~ true }}{{ messages }}{{ tools }}""",
# tojson against the odd characters and numbers
r"""{{ {'k\n"': ['\u2028</script>&\'', 1.0, 1e21, -0.0, 12345678901234567, none, true, {'': []}]}|tojson }}
{{ {'z': 1, 'a': {'y': [1, [], {}], 'b': (1, 2)}}|tojson(indent=3) }}
{{ {'z': 1, 'a': {'y': 2, 'b': 3}}|tojson(sort_keys=true, separators=(',', ':')) }}
{{ 'é😀'|tojson(ensure_ascii=true) }}{{ messages[2].tool_calls|tojson(indent=2) }}""",
# call blocks, caller with arguments, nested, and macros as values
"""{% macro wrap(tag, upper=false) -%}
<{{ tag }}>{{ caller(tag, n=2)|upper if upper else caller(tag) }}</{{ tag }}>
{%- endmacro %}
{% call(name, n=1) wrap('a') %}in {{ name }}{{ n }}{% call(x, n=0) wrap('b', upper=true) %} deep {{ x }} {{ name }}{% endcall %}{% endcall %}
{% call(name, n=1) wrap('c', true) %}{{ name * n }}{% endcall %}
{% set table = {'w': wrap} %}{% call(t, n=0) table.w('d') %}{{ t }}{{ n }}{% endcall %}""",
# slices and indices of every sign on text of one to four bytes a character
"""{% set t = 'aé☃😀z' %}{% for i in range(-7, 8) %}{{ t[i] }}|{{ t[i:] }}|{{ t[:i] }}|{{ t[i::2] if i else '' }}|{{ t[:i:-1] }}
{% endfor %}{{ t[::-2] }}{{ t[3:1:-1] }}{{ t[1:][1:][:-1] }}{{ t[none:none:none] }}{{ (1,2,3,4)[::-1] }}{{ range(10)[2:8:3]|list }}""",
# generators: always true, read once
"""{% set g = messages|selectattr('role', 'equalto', 'nobody') %}{{ 'true' if g else 'false' }}{{ g|list }}
{% set h = xs|map('string') %}{{ h|first }}{{ h|join('+') }}{{ h|list }}{{ h is iterable }}{{ h is sequence }}
{% for x in xs|reject('eq', 1) %}{{ x }}{{ loop.last }}{{ loop.length }}{% endfor %}
{% for x in xs|reverse if x != 1 %}{{ x }}{{ loop.revindex }}{{ loop.nextitem }}{% endfor %}""",
# precedence
"""{{ (1 + 2) ~ 3 * 4 }}{{ 'n' ~ 3 - 2 ~ 'x' if false else 2 * 3 ~ 4 }}{{ -2 ** 2 }}{{ 2 ** 3 ** 2 }}{{ not 1 == 2 and 3 > 2 or false }}{{ 1 < 2 == true }}{{ 'a' ~ 'b' in 'cab' }}
{{ 1 if false else 2 if false else 3 }}{{ (1 if true) + 1 }}{{ -3|abs + 1 }}{{ 'x' is string and 'y' is not none or z }}
{{ [1, 2] + [3] == [1, 2, 3] }}{{ 10 - 3 - 2 }}{{ 2 * 3 % 4 }}{{ 7 // 2 * 2 }}{{ 'a' if 'b' in {'b': 1} }}{{ 5 is divisibleby 5 and 4 is even }}""",
# a date line, an unusual default, and raise_exception in a branch not taken
"""{% if not date_string is defined %}{% set date_string = strftime_now('%d %B %Y, %H:%M') %}{% endif %}{{ date_string }}
{{ (custom or 'fallback')|trim }}{{ messages[0]['missing']|default('x', true) }}{{ messages[0].missing is undefined }}
{% if messages|length > 100 %}{{ raise_exception('too many') }}{% endif %}{{ (messages|last).content|int + 1 }}""",
# strings that look like tags, inside tags, strings, raw and comments
"""{{ '{% if %}' ~ "}}" ~ '{#' }}{# {{ nothing }} {% if %} #}{% raw %}{{ '}}' }}{% endraw %}{{ '%}' }}{% if '%}' == "%}" %}ok{% endif %}
{{ {'a': {'b': {'c': '}}'}}}.a.b.c }}{ { {% raw %}{%{% endraw %} % } } {{'}'}}""",
# errors: each must fail
"{% for m in messages %}{{ m.content.strip() }}{% endfor %}",
"{% set ns.x = 1 %}",
"{{ messages[0].content + 1 }}",
"{{ undefined_thing.attribute }}",
"{{ raise_exception('no') }}",
"{{ messages|map(attribute='content')|join|length + none }}",
"{% macro m(a) %}{{ a.b.c }}{% endmacro %}{{ m(1) }}",
]

# a JSON text and a template over its value `j`
JSON_CASES = [
    (j, t)
    for j in [
        '12345678901234567890', '-12345678901234567890', '9223372036854775807', '9223372036854775808',
        '-9223372036854775808', '-9223372036854775809', '1' * 400, '-0', '0', '-0.0', '0.1', '1e5', '1E+5', '1.5e-7',
        '1e400', '-1e400', '1e-400', '123456789.123456789', '100000000000000000000.0', '1.0', '1e22', '1e16',
        'NaN', 'Infinity', '-Infinity', '"\\u0000"', '"a\\u0000b"', '"\\u007f"', '"\x7f"', '"\\ud83d\\ude00"', '"\\u00e9"',
        '"\\/\\b\\f\\n\\r\\t\\"\\\\"', '"é☃😀"', '{"a\\u0000b": "c\\u0000"}', '{"a": 1, "b": 2, "a": 3}',
        '[1, 2.0, null, true, false, "x", [], {}]', ' \t\r\n [ 1 , 2 ] \n', '{"a":{"b":[{"c":12345678901234567890}]}}',
        '""', '{}', '[]', 'null', 'true', '{"n": 18446744073709551616, "x": 1e400}',
        # not JSON
        '', ' ', '01', '+1', '1.', '.5', '1e', '1 2', '[1,]', '[,1]', '{"a":1,}', "{'a':1}", '{a:1}', '{"a" 1}', '{"a":}',
        '[1', '{"a":1', '"a', '"\\x"', '"\\u12"', '"\n"', 'nul', 'nan', '-', '--1', '0x1', 'tru', '[1 2]', ']', '"\\u00g0"',
        '1' * 4301, '\x00', '1\x00', '\ufeff1',
    ]
    for t in ['{{ j }}', '{{ j|tojson }}', '{{ j|tojson(ensure_ascii=true) }}|{{ j is number }}|{{ j is integer }}|{{ [j] }}']
]
