-- Statements that take time or memory without limit in some engine, one a line. Lines of functions that the guard does not allow stay: a list that
-- grows again must fail here first.
-- Functions that the engine did not interrupt.
SELECT arrayLevenshteinDistance(range(1000000), range(1000000))
SELECT arrayLevenshteinDistanceWeighted(range(30000), arrayReverse(range(30000)), range(30000), range(30000))
SELECT arraySimilarity(range(30000), arrayReverse(range(30000)), range(30000), range(30000))
SELECT JSON_VALUE(concat('{"a":', repeat('[', 300), '1', repeat(']', 300), '}'), '$.a[*][*][*][*][*][*][*][*][*]')
SELECT JSON_QUERY(concat('[', arrayStringConcat(arrayMap(i -> '[1,2,3,4]', range(100000)), ','), ']'), '$[*][*][*]')
SELECT hierarchicalKMeans(10)(number) FROM numbers(1000000)
SELECT mannWhitneyUTest(number, number % 2) FROM numbers(100000000)
SELECT estimateCompressionRatio('ZSTD(22)')(toString(number)) FROM numbers(100000000)
SELECT editDistance(repeat('ab', 60000), repeat('ba', 60000))
SELECT damerauLevenshteinDistance(repeat('ab', 2000), repeat('ba', 2000)) FROM numbers(1000)
SELECT jaroSimilarity(repeat('ab', 60000), repeat('ba', 60000))
SELECT cutURLParameter(repeat('a/', 100000), arrayMap(i -> toString(i), range(100000)))
SELECT countSubstringsCaseInsensitiveUTF8(repeat('a', 1000000), repeat('a', 500000))
SELECT naiveBayesNgrams('a', repeat('b', 1000000))
SELECT isProbablePrime(pow(2, 255) - 19) FROM numbers(100000000)
SELECT kolmogorovSmirnovTest(number, number % 2) FROM numbers(100000000)
SELECT stochasticLinearRegression(0.1, 0.1, 5, 'SGD')(number, number) FROM numbers(1000000000)
SELECT multiMatchAnyIndex(repeat('ab', 500000), arrayMap(i -> toString(i), range(100000)))
SELECT multiSearchAny(repeat('a/', 100000), arrayMap(i -> toString(i), range(100000)))
SELECT hasAny(arrayMap(i -> cityHash64(i), range(200000)), range(300000))
SELECT hasSubstr(range(1000000), range(500000, 1000001))
SELECT sipHash64(range(300000), now() + number, arrayMap(i -> cityHash64(i), range(100000))) FROM numbers(1000) FORMAT Null
-- Functions that take memory that the engine does not count.
SELECT length(printf('%2000000000d', 1))
SELECT length(printf('%1000000d', number)) FROM numbers(100000)
SELECT max(length(formatRow('CSV', range(1000000), number))) FROM numbers(10000)
SELECT max(length(formatRow('Pretty', repeat('a', 1000000), number))) FROM numbers(10000)
SELECT sum(length(toDecimalString(number, 77))) FROM numbers(1000000000)
SELECT length(toDecimalString(toDecimal256(1, 0), 76)) FROM numbers(100000000)
SELECT length(ngrams(repeat('a', 1000000), 1000))
SELECT length(sparseGrams(arrayStringConcat(arrayMap(i -> toString(cityHash64(i)), range(1000000)))))
SELECT length(arrayShingles(range(1000000), 1000))
SELECT length(URLHierarchy(concat('http://a/', repeat('b/', 500000))))
SELECT length(URLPathHierarchy(concat('http://a/', repeat('b/', 500000))))
SELECT length(arrayFold((a, x) -> arrayPushBack(a, x), range(1000000), [0::Int64]))
SELECT length(arrayFold((a, x) -> arrayConcat(a, a), range(40), [0::UInt8]))
SELECT length(arrayZip(range(100000000), range(100000000)))
SELECT length(timeSlots(toDateTime(0), toUInt32(4000000000), 1))
SELECT length(randomString(4000000000))
SELECT length(randomPrintableASCII(2000000000))
SELECT length(space(4000000000))
SELECT length(replicate(1, range(100000000)))
SELECT length(extractKeyValuePairs(repeat('a:b,', 1000000)))
SELECT mapPopulateSeries(map(0, 1), 4000000000)
SELECT groupFormat('CSV')(number) FROM numbers(1000000000)
-- Arrays and strings.
SELECT length(range(4000000000))
SELECT length(arrayMap(x -> range(1000000), range(1000)))
SELECT length(arrayMap(x -> repeat('a', 1000000), range(10000)))
SELECT length(arrayResize([1], 4000000000))
SELECT length(arrayResize([repeat('a', 1000000)], 100000, repeat('b', 1000000)))
SELECT length(arrayWithConstant(4000000000, 1))
SELECT length(arrayWithConstant(1000000, repeat('a', 1000000)))
SELECT length(arrayConcat(range(100000000), range(100000000), range(100000000)))
SELECT length(arrayFlatten(arrayMap(x -> range(10000), range(100000))))
SELECT length(arrayEnumerateUniq(range(100000000)))
SELECT length(arrayDistinct(range(100000000)))
SELECT length(arraySort(x -> toString(x), range(50000000)))
SELECT length(arrayReverseSort(range(100000000)))
SELECT length(arrayIntersect(range(50000000), range(50000000)))
SELECT length(arrayCumSum(range(100000000)))
SELECT arrayExists(x -> arrayExists(y -> x = y + 1e9, range(100000)), range(100000))
SELECT arraySum(x -> arraySum(y -> cityHash64(x, y), range(100000)), range(100000))
SELECT arrayCount(x -> has(range(100000), x + 1000000), range(100000))
SELECT arrayCount(x -> position(repeat('ab', 500000), repeat('ba', 1000)) > x, range(100000))
SELECT length(arrayStringConcat(arrayMap(x -> repeat('a', 1000000), range(10000))))
SELECT length(repeat('a', 4000000000))
SELECT length(repeat(repeat(repeat('a', 1000000), 1000000), 1000))
SELECT length(leftPad('a', 4000000000, 'b'))
SELECT length(rightPadUTF8('a', 2000000000, 'é'))
SELECT length(concat(repeat('a', 1000000), number)) FROM numbers(100000000)
SELECT length(replaceAll(repeat('a', 1000000), 'a', repeat('b', 1000000)))
SELECT length(replaceRegexpAll(repeat('a', 1000000), '', repeat('b', 10000)))
SELECT length(splitByChar('a', repeat('a', 1000000))) FROM numbers(1000000)
SELECT length(splitByRegexp('', repeat('a', 1000000))) FROM numbers(1000)
SELECT length(extractAll(repeat('a', 1000000), '.')) FROM numbers(1000)
SELECT length(extractAllGroupsVertical(repeat('ab', 500000), '(.)(.)')) FROM numbers(1000)
SELECT length(alphaTokens(repeat('a ', 500000))) FROM numbers(1000)
SELECT length(format(repeat('{0}', 100000), repeat('a', 1000000)))
SELECT length(hex(repeat('a', 1000000))) FROM numbers(100000000)
SELECT length(base58Encode(repeat('a', 1000000)))
SELECT length(base58Decode(repeat('z', 1000000)))
SELECT length(bin(repeat('a', 1000000))) FROM numbers(10000000)
SELECT length(char(number, number, number)) FROM numbers(100000000000)
SELECT length(substringIndex(repeat('a.', 500000), '.', number)) FROM numbers(1000000)
SELECT translate(repeat('a', 1000000), 'a', 'b') FROM numbers(100000) FORMAT Null
SELECT reverseUTF8(repeat('é', 500000)) FROM numbers(100000) FORMAT Null
SELECT length(toString(tuple(range(10000000))))
SELECT length(toJSONString(range(50000000)))
SELECT length(map(range(1000000), range(1000000)))
SELECT length(mapFromArrays(range(10000000), range(10000000)))
SELECT length(bitmapToArray(bitmapBuild(range(100000000))))
SELECT bitmapCardinality(bitmapSubsetInRange(bitmapBuild(range(10000000)), 0, 4000000000)) FROM numbers(1000)
SELECT formatDateTime(now(), repeat('%Y', 100000)) FROM numbers(100000) FORMAT Null
SELECT parseDateTime(repeat('2026', 100000), repeat('%Y', 100000)) FROM numbers(1000) FORMAT Null
SELECT geoToH3(1.0, 1.0, 15) FROM numbers(1000000000)
-- Regular expressions.
SELECT match(repeat('a', 1000000), '(a|a|a)*b(a|aa)+$') FROM numbers(1000)
SELECT match(repeat('a', 1000000), '((((a{1,9}){1,9}){1,9}){1,9})b')
SELECT multiMatchAllIndices(repeat('a', 1000000), arrayMap(i -> concat('a', toString(i)), range(1000)))
SELECT countMatches(repeat('ab', 500000), '(a.*)*b') FROM numbers(1000)
SELECT extractGroups(repeat('a', 1000000), concat(repeat('(', 200), 'a', repeat(')', 200))) FROM numbers(100) FORMAT Null
SELECT repeat('a', 1000000) LIKE concat(repeat('%a', 100000), 'b')
SELECT positionCaseInsensitiveUTF8(repeat('é', 500000), concat(repeat('é', 250000), 'x')) FROM numbers(1000)
-- JSON.
SELECT JSONExtract(concat(repeat('[', 100000), repeat(']', 100000)), 'Array(String)')
SELECT length(JSONExtractArrayRaw(concat('[', repeat('1,', 400000), '1]'))) FROM numbers(10000)
SELECT JSONExtractKeysAndValues(concat('{', repeat('"a":1,', 100000), '"b":2}'), 'Int64') FROM numbers(10000) FORMAT Null
SELECT JSONLength(repeat('[', 1000000))
SELECT length(JSONExtract('[]', repeat('Array(', 1000)))
SELECT simpleJSONExtractRaw(concat('{"a":', repeat('{', 500000)), 'a') FROM numbers(100000) FORMAT Null
-- Aggregates and windows.
SELECT length(groupArray(number)) FROM numbers(100000000000)
SELECT length(groupArray(range(1000000))) FROM numbers(100000)
SELECT length(groupUniqArray(toString(number))) FROM numbers(10000000000)
SELECT length(groupArrayMovingSum(number)) FROM numbers(1000000000)
SELECT length(groupArraySorted(100000000)(number)) FROM numbers(1000000000)
SELECT length(groupConcat(',')(number)) FROM numbers(10000000000)
SELECT length(groupArrayInsertAt(number, toUInt32(number * 1000))) FROM numbers(1000000)
SELECT uniqExact(number) FROM numbers(100000000000)
SELECT quantileExact(number) FROM numbers(100000000000)
SELECT quantilesGK(1000000, 0.5)(number) FROM numbers(1000000000)
SELECT quantileDD(0.0000001, 0.5)(rand64()) FROM numbers(1000000000)
SELECT topK(65535)(number) FROM numbers(100000000000)
SELECT histogram(10000)(number) FROM numbers(1000000000)
SELECT sparkbar(100000)(number, number) FROM numbers(1000000000)
SELECT largestTriangleThreeBuckets(100000000)(number, number) FROM numbers(1000000000)
SELECT sequenceMatch('(?1).*(?2).*(?1).*(?2).*(?1).*(?2)')(toDateTime(number), number % 3 = 0, number % 7 = 1) FROM numbers(100000000)
SELECT windowFunnel(100000000)(number, number % 2 = 0, number % 3 = 0, number % 5 = 0) FROM numbers(1000000000)
SELECT retention(number % 2 = 0, number % 3 = 0) FROM numbers(100000000000)
SELECT maxIntersections(number, number + 1000000) FROM numbers(1000000000)
SELECT sumMap([number], [number]) FROM numbers(10000000000)
SELECT entropy(number) FROM numbers(100000000000)
SELECT exponentialMovingAverage(10)(number, number) FROM numbers(100000000000)
SELECT rankCorr(number, number) FROM numbers(10000000000)
SELECT groupBitmap(number * 1000003) FROM numbers(100000000000)
SELECT cramersV(number, number) FROM numbers(10000000000)
SELECT simpleLinearRegression(number, number) FROM numbers(100000000000)
SELECT number, sum(number) OVER (ORDER BY number) FROM numbers(1000000000) FORMAT Null
SELECT number, groupArray(number) OVER (ORDER BY number ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW) FROM numbers(1000000) FORMAT Null
SELECT quantileExact(number) OVER (ORDER BY number ROWS BETWEEN 100000 PRECEDING AND CURRENT ROW) FROM numbers(1000000) FORMAT Null
SELECT number, count() FROM numbers(100000000000) GROUP BY number FORMAT Null
SELECT number % 100, groupArray(toString(number)) FROM numbers(1000000000) GROUP BY 1 FORMAT Null
SELECT number FROM numbers(100000000000) GROUP BY number WITH CUBE FORMAT Null
-- Joins, unions, recursion, sorting.
SELECT count() FROM numbers(1000000000) a, numbers(1000000000) b
SELECT count() FROM numbers(1000000) a, numbers(1000000) b WHERE a.number + b.number = 7
SELECT count() FROM numbers(100000000) a JOIN numbers(100000000) b ON a.number = b.number
SELECT count() FROM numbers(1000000) a JOIN numbers(1000000) b ON a.number % 3 = b.number % 3
SELECT count() FROM numbers(1000000000) WHERE number IN (SELECT number * 2 FROM numbers(1000000000))
WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT count() FROM t
WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT a.n FROM t a, t b) SELECT count() FROM t
WITH RECURSIVE t AS (SELECT 'a' AS s UNION ALL SELECT concat(s, s) FROM t) SELECT max(length(s)) FROM t
SELECT arrayJoin(range(1000000)), arrayJoin(range(1000001)) FORMAT Null
SELECT arrayJoin(range(100000)) + arrayJoin(range(100001)) FROM numbers(100000) FORMAT Null
SELECT number, toString(number) FROM numbers(10000000000) ORDER BY toString(number) DESC LIMIT 1000000
SELECT number FROM numbers(10000000000) ORDER BY rand() LIMIT 1000000 OFFSET 1000000000
SELECT DISTINCT number FROM numbers(100000000000) FORMAT Null
SELECT number FROM numbers(100000000000) LIMIT 1 BY number FORMAT Null
SELECT number FROM numbers(10) ORDER BY number WITH FILL FROM 0 TO 100000000000 FORMAT Null
SELECT sleep(3), sleepEachRow(3) FROM numbers(1000)
SELECT count() FROM system.numbers
SELECT count() FROM zeros(1000000000000) WHERE zero = 1
SELECT count() FROM generateRandom('a Array(String)', 1, 1000000, 1000000)
SELECT count() FROM streams a, streams b, streams c, streams d, numbers(1000000000)
SELECT * FROM numbers(1000000000) FORMAT PrettyCompactMonoBlock
SELECT repeat('a', 1000000) FROM numbers(100000) FORMAT JSON
SELECT repeat('a', 1000000) FROM numbers(100000) FORMAT Parquet
SELECT range(100000) FROM numbers(100000) FORMAT Vertical
