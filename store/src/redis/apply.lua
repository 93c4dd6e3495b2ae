-- Applies planned writes to items: all of them, or none.
--
-- An item is a hash. A field is the path of an attribute, its names joined by \31. A value begins with its
-- type: `"text`, `t` and `f`, a number's digits, `#1,2` for a set of numbers in ascending order. A map is a
-- field `{`, and its entries are fields below it. The field \30 has the ids of the last writes.
--
-- KEYS: the sorted sets of the indexes, the table's own first; the sorted set of expiries, of keys of items by
-- epoch seconds; the stream of images; the number of writes; for a transaction, its token; the items.
-- ARGV: the id of the write, or empty in a transaction; of a repeated write the number of writes that was known
-- before it was first sent, else empty; 1 to return items that were written; how many expired items to remove at
-- most; 1 if there is a token; for each item an action, packed: {kind, PK, SK, conditions, changes}.
-- Returns 1 if applied or 0 if a condition failed, the server's time in milliseconds, for each item its
-- fields: after the write, or before it if its own condition failed; the number of writes if one was applied,
-- else 0; and how many expired items were removed.
--
-- No item expires by itself: the images of a shard are the last that is known of its usage, and entries of
-- indexes go with their items. So each write removes some that have expired.

local find, sub, match, rep = string.find, string.sub, string.match, string.rep
-- Ids that an item keeps, and the bytes of each: the id, and the number of its write.
local KEPT, ID, SIZE = 16, 8, 14
-- Begins the ids of a new item. Those of an earlier item under its key are not known.
local NEW = rep('\0', ID)
-- Seconds for which the token of a transaction is known.
local TOKEN_TTL = 600
-- Records that the stream keeps for its reader.
local MOST_RECORDS = 1000000

local id, since, returns, most_expired = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1', tonumber(ARGV[4])
local is_transaction = id == ''
local EXPIRIES, RECORDS, WRITES = KEYS[#INDEXES + 1], KEYS[#INDEXES + 2], KEYS[#INDEXES + 3]
local token = ARGV[5] == '1' and KEYS[#INDEXES + 4]
local first_item = #INDEXES + (token and 5 or 4)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function refuse(code, text)
  error({ err = code .. ' ' .. text })
end

local function invalid(text, path)
  refuse('INVALID', text .. ' at ' .. string.gsub(path, '\31', '.'))
end

-- Numbers are text, because Lua's are exact only up to 2^53.

local function is_number(value)
  return value and find(value, '^%-?%d') ~= nil
end

-- Returns the sign, the whole part and the fraction.
local function parts(number)
  return match(number, '^(%-?)(%d+)%.?(%d*)$')
end

-- Compares by sign, length and text. Returns a number below, equal to or above 0.
local function compare(a, b)
  if a == b then
    return 0
  end
  local a_sign, a_whole, a_fraction = parts(a)
  local b_sign, b_whole, b_fraction = parts(b)
  if a_sign ~= b_sign then
    return a_sign == '-' and -1 or 1
  end
  local is_less
  if #a_whole ~= #b_whole then
    is_less = #a_whole < #b_whole
  elseif a_whole ~= b_whole then
    is_less = a_whole < b_whole
  else
    is_less = a_fraction < b_fraction
  end
  return is_less == (a_sign == '') and -1 or 1
end

-- Adds digit by digit, of numbers of any length.
local function add_digits(a, b)
  local a_sign, a_whole, a_fraction = parts(a)
  local b_sign, b_whole, b_fraction = parts(b)
  local point = math.max(#a_fraction, #b_fraction)
  -- A leading zero takes the last carry.
  local length = math.max(#a_whole, #b_whole) + 1
  local function digits(whole, fraction)
    return rep('0', length - #whole) .. whole .. fraction .. rep('0', point - #fraction)
  end
  local larger, smaller, sign = digits(a_whole, a_fraction), digits(b_whole, b_fraction), a_sign
  local step = a_sign == b_sign and 1 or -1
  if step == -1 and larger < smaller then
    larger, smaller, sign = smaller, larger, b_sign
  end
  local sum, carry = {}, 0
  for at = #larger, 1, -1 do
    local digit = larger:byte(at) - 48 + step * (smaller:byte(at) - 48) + carry
    carry = math.floor(digit / 10)
    sum[at] = digit - carry * 10
  end
  local text = table.concat(sum)
  local whole, fraction = match(sub(text, 1, length), '^0*(%d+)$'), match(sub(text, length + 1), '^(.-)0*$')
  if fraction ~= '' then
    whole = whole .. '.' .. fraction
  end
  return whole == '0' and whole or sign .. whole
end

local EXACT = 2 ^ 52

local function add(a, b)
  local x, y = tonumber(a), tonumber(b)
  local is_whole = not find(a, '.', 1, true) and not find(b, '.', 1, true)
  if is_whole and math.abs(x) < EXACT and math.abs(y) < EXACT then
    return string.format('%.0f', x + y)
  end
  return add_digits(a, b)
end

-- Returns the numbers of a set, each with whether it is in it.
local function members(set)
  local all = {}
  for number in string.gmatch(set or '', '[^#,]+') do
    all[number] = true
  end
  return all
end

-- Returns the set of numbers, or nothing: a set is never empty.
local function set_of(all)
  local numbers = {}
  for number in pairs(all) do
    table.insert(numbers, number)
  end
  table.sort(numbers, function(a, b)
    return compare(a, b) < 0
  end)
  return #numbers > 0 and '#' .. table.concat(numbers, ',')
end

-- Returns the fields below a map.
local function below(item, path)
  local fields, prefix = {}, path .. '\31'
  for field in pairs(item) do
    if sub(field, 1, #prefix) == prefix then
      table.insert(fields, field)
    end
  end
  return fields
end

-- Returns whether the value at a path is this one: a text, or of a map {suffix, text, ...}.
local function equals(item, path, value)
  if type(value) == 'string' then
    return item[path] == value
  end
  for at = 1, #value, 2 do
    if item[path .. value[at]] ~= value[at + 1] then
      return false
    end
  end
  return #below(item, path) == #value / 2 - 1
end

local HOLDS = {}

local function holds(item, condition)
  return HOLDS[condition[1]](item, condition[2], condition[3])
end

HOLDS['absent'] = function(item, path)
  return not item[path]
end
HOLDS['present'] = function(item, path)
  return item[path] ~= nil
end
HOLDS['equals'] = equals
HOLDS['differs'] = function(item, path, value)
  return not equals(item, path, value)
end
HOLDS['at_least'] = function(item, path, value)
  return is_number(item[path]) and is_number(value) and compare(item[path], value) >= 0
end
HOLDS['at_most'] = function(item, path, value)
  return is_number(item[path]) and is_number(value) and compare(item[path], value) <= 0
end
HOLDS['lacks'] = function(item, path, value)
  return not members(item[path])[value]
end
HOLDS['absent_or'] = function(item, path, condition)
  return not item[path] or holds(item, condition)
end

-- A change adds what it writes to `changed`: text, or false for a field that goes. All read the item as it was.

local function remove(item, changed, path)
  changed[path] = item[path] and false
  if item[path] == '{' then
    for _, field in ipairs(below(item, path)) do
      changed[field] = false
    end
  end
end

local function set(item, changed, path, value)
  remove(item, changed, path)
  if type(value) == 'string' then
    changed[path] = value
    return
  end
  for at = 1, #value, 2 do
    changed[path .. value[at]] = value[at + 1]
  end
end

local CHANGE = { set = set, remove = remove }

CHANGE['set_if_absent'] = function(item, changed, path, value)
  if not item[path] then
    set(item, changed, path, value)
  end
end
CHANGE['copy'] = function(item, changed, path, from)
  local value = item[from]
  if not value then
    invalid('nothing to copy', from)
  end
  if value == '{' then
    value = { '', '{' }
    for _, field in ipairs(below(item, from)) do
      table.insert(value, sub(field, #from + 1))
      table.insert(value, item[field])
    end
  end
  set(item, changed, path, value)
end
CHANGE['next'] = function(item, changed, path, from, first)
  if item[from] and not is_number(item[from]) then
    invalid('no number', from)
  end
  set(item, changed, path, item[from] and add(item[from], '1') or first)
end
CHANGE['add'] = function(item, changed, path, value)
  local before = item[path]
  if sub(value, 1, 1) == '#' then
    if before and sub(before, 1, 1) ~= '#' then
      invalid('no set of numbers', path)
    end
    local all = members(before)
    for number in pairs(members(value)) do
      all[number] = true
    end
    changed[path] = set_of(all)
  elseif before and not is_number(before) then
    invalid('no number', path)
  else
    changed[path] = add(before or '0', value)
  end
end
CHANGE['delete_from'] = function(item, changed, path, value)
  if not item[path] then
    return
  end
  if sub(item[path], 1, 1) ~= '#' then
    invalid('no set of numbers', path)
  end
  local all = members(item[path])
  for number in pairs(members(value)) do
    all[number] = nil
  end
  changed[path] = set_of(all)
end

-- Calls a command with many arguments, in pieces that fit Lua's stack.
local function call(command, key, arguments)
  for at = 1, #arguments, 1000 do
    redis.call(command, key, unpack(arguments, at, math.min(at + 999, #arguments)))
  end
end

-- Returns the member of an index for an item with these keys of the index; nothing if it lacks one.
local function entry(index, hash, range, pk, sk)
  local key = pk .. '\0' .. sk
  if not (hash and range) then
    return nil
  elseif index[1] == 'PK' then
    return key
  elseif is_number(range) then
    -- Ordered as text: of one length.
    local whole = sub(range, 1, 1) == '-' and '0' or match(range, '^%d+')
    range = rep('0', 20 - #whole) .. whole
  else
    range = sub(range, 2)
  end
  return sub(hash, 2) .. '\0' .. range .. '\0' .. key
end

-- Returns the item at a key: its fields with their values, and the answer itself.
local function read(key)
  local item, flat = {}, redis.call('HGETALL', key)
  for field = 1, #flat, 2 do
    item[flat[field]] = flat[field + 1]
  end
  return item, flat
end

-- Returns a field after the changes.
local function written(item, changed, field)
  if changed[field] == nil then
    return item[field]
  end
  return changed[field]
end

-- Returns the expiry in epoch seconds, or nothing.
local function expiry(ttl)
  return ttl and find(ttl, '^%d+$') and #ttl < 13 and ttl
end

-- Returns the image that the stream has of an item: its attributes that are no maps.
local function image(item, changed)
  local shown = {}
  for field, value in pairs(item) do
    shown[field] = value
  end
  for field, value in pairs(changed) do
    shown[field] = value or nil
  end
  shown['\30'] = nil
  for field, value in pairs(shown) do
    if value == '{' or find(field, '\31', 1, true) then
      shown[field] = nil
    end
  end
  return cjson.encode(shown)
end

-- Returns how often a number of writes has reached the next copy. It is below 2^53.
local function copies(writes)
  return writes and is_number(writes) and math.floor(tonumber(writes) / INTERIM)
end

-- Adds the images of a shard before and after a write to the stream, if usage is copied from one of them: it
-- begins, ends or is another life, begins an hour, or has had enough writes since the last copy. There is no
-- stream until its reader makes it.
local function record(item, changed, pk, sk, is_new, is_gone)
  if sk ~= BUCKET_SK then
    return
  end
  local is_copied = is_new or is_gone
  for _, field in ipairs({ HOUR, BIRTH }) do
    is_copied = is_copied or item[field] ~= (written(item, changed, field) or nil)
  end
  is_copied = is_copied or (item[LIVE] == nil) ~= not written(item, changed, LIVE)
  is_copied = is_copied or copies(item[SEQUENCE]) ~= copies(written(item, changed, SEQUENCE))
  if not is_copied then
    return
  end
  local fields = { 'PK', pk, 'SK', sk }
  if not is_new then
    table.insert(fields, 'old')
    table.insert(fields, image(item, {}))
  end
  if not is_gone then
    table.insert(fields, 'new')
    table.insert(fields, image(item, changed))
  end
  redis.call('XADD', RECORDS, 'NOMKSTREAM', 'MAXLEN', '~', MOST_RECORDS, '*', unpack(fields))
end

-- Removes an item that has expired. Returns whether there was one.
local function remove_expired(key)
  local is_ours, item = pcall(read, key)
  local ttl = is_ours and expiry(item[TTL])
  if not ttl or tonumber(ttl) * 1000 > now then
    redis.call('ZREM', EXPIRIES, key)
    return false
  end
  local pk, sk = sub(item['PK'], 2), sub(item['SK'], 2)
  -- First: a full server lets a script that has written go on, and would refuse the record.
  redis.call('ZREM', EXPIRIES, key)
  record(item, {}, pk, sk, false, true)
  redis.call('DEL', key)
  for at, index in ipairs(INDEXES) do
    local member = entry(index, item[index[1]], item[index[2]], pk, sk)
    if member then
      redis.call('ZREM', KEYS[at], member)
    end
  end
  return true
end

local function remove_all_expired()
  local removed = 0
  if most_expired > 0 then
    local due = redis.call('ZRANGE', EXPIRIES, '-inf', time[1], 'BYSCORE', 'LIMIT', 0, most_expired)
    for _, key in ipairs(due) do
      if remove_expired(key) then
        removed = removed + 1
      end
    end
  end
  return removed
end

if first_item > #KEYS then
  return { 1, now, {}, 0, remove_all_expired() }
end
if token and redis.call('EXISTS', token) == 1 then
  return { 1, now, {}, 0, 0 }
end

local writes, failed, has_failed = {}, {}, false
for at = first_item, #KEYS do
  local key = KEYS[at]
  local kind, pk, sk, conditions, changes = unpack(cmsgpack.unpack(ARGV[at - first_item + 6]))
  local item, flat = read(key)
  if #flat > 0 and (item['PK'] ~= '"' .. pk or item['SK'] ~= '"' .. sk) then
    refuse('FOREIGN', 'the key holds a hash that is not of this table')
  end
  local ids = item['\30'] or ''
  if not is_transaction then
    local known = find(ids, id, 1, true)
    while known and (known - 1) % SIZE ~= 0 do
      known = find(ids, id, known + 1, true)
    end
    if known then
      return { 1, now, { flat }, 0, 0 }
    end
    -- It may have been among those that are not kept, if the oldest that is kept came after it.
    local is_complete = #ids < KEPT * SIZE and sub(ids, 1, ID) ~= NEW
    -- A number that was not given yet is of another history, which a failover ended.
    local is_of_another = since and since > tonumber(redis.call('GET', WRITES) or '0')
    if since and not is_complete and (is_of_another or struct.unpack('>I6', ids, ID + 1) > since) then
      refuse('UNDECIDED', 'more writes came after it than the item keeps ids of')
    end
  end
  local is_failed = false
  for _, condition in ipairs(conditions) do
    if not holds(item, condition) then
      is_failed = true
      break
    end
  end
  failed[#failed + 1] = is_failed and flat
  has_failed = has_failed or is_failed
  local changed = {}
  if kind == 'update' and not has_failed then
    for _, change in ipairs(changes) do
      local path = change[2]
      local above = find(path, '\31', 1, true) and match(path, '^(.*)\31')
      if above and item[above] ~= '{' then
        invalid('no map holds what is changed', path)
      end
      CHANGE[change[1]](item, changed, path, change[3], change[4])
    end
    if #flat == 0 then
      changed['PK'], changed['SK'] = '"' .. pk, '"' .. sk
    end
  elseif kind == 'delete' then
    for field in pairs(item) do
      changed[field] = false
    end
  end
  writes[#writes + 1] = { key, item, changed, pk, sk, kind, ids, #flat == 0 }
end
if has_failed then
  return { 0, now, failed, 0, 0 }
end

local number = redis.call('INCR', WRITES)
-- Entries come before their items and go after them, so that an item without one cannot be. What may fail comes
-- before all items.
local gone = {}
for _, write in ipairs(writes) do
  local key, item, changed, pk, sk, kind, ids, is_new = unpack(write)
  for at, index in ipairs(INDEXES) do
    if changed[index[1]] ~= nil or changed[index[2]] ~= nil then
      local before = entry(index, item[index[1]], item[index[2]], pk, sk)
      local after = entry(index, written(item, changed, index[1]), written(item, changed, index[2]), pk, sk)
      if after and after ~= before then
        redis.call('ZADD', KEYS[at], 0, after)
      end
      if before and after ~= before then
        table.insert(gone, { KEYS[at], before })
      end
    end
  end
  local ttl = expiry(changed[TTL])
  if ttl then
    redis.call('ZADD', EXPIRIES, ttl, key)
  elseif expiry(item[TTL]) and changed[TTL] ~= nil then
    table.insert(gone, { EXPIRIES, key })
  end
  if kind == 'update' then
    record(item, changed, pk, sk, is_new, false)
    local first = is_new and NEW .. struct.pack('>I6', number) or ''
    local last = is_transaction and '' or id .. struct.pack('>I6', number)
    if first ~= '' or last ~= '' then
      changed['\30'] = sub(ids .. first .. last, -SIZE * KEPT)
    end
  elseif kind == 'delete' and not is_new then
    record(item, changed, pk, sk, false, true)
  end
end
local answers = {}
for _, write in ipairs(writes) do
  local key, item, changed, _, _, kind = unpack(write)
  if kind == 'delete' then
    redis.call('DEL', key)
  elseif kind == 'update' then
    local new, old = {}, {}
    for field, value in pairs(changed) do
      if value then
        new[#new + 1] = field
        new[#new + 1] = value
      else
        old[#old + 1] = field
      end
    end
    call('HSET', key, new)
    call('HDEL', key, old)
    if returns then
      for field, value in pairs(item) do
        if changed[field] == nil then
          new[#new + 1] = field
          new[#new + 1] = value
        end
      end
      answers[#answers + 1] = new
    end
  end
end
for _, member in ipairs(gone) do
  redis.call('ZREM', member[1], member[2])
end
if token then
  redis.call('SET', token, 1, 'EX', TOKEN_TTL)
end
return { 1, now, answers, number, remove_all_expired() }
