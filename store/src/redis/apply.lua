-- Applies planned writes to items: all of them, or none.
--
-- An item is a hash. A field is the path of an attribute, its names joined by \31. A value begins with its
-- type: `"text`, `t` and `f`, a number's digits, `#1,2` for a set of numbers in ascending order. A map is a
-- field `{`, and its entries are fields below it. The field \30 has the ids of the last writes.
--
-- KEYS: the sorted sets of the indexes, the table's own first; the sorted set of expiries, of keys of items by
-- epoch seconds; the stream of images; the number of all writes, and of the last one that deleted an item; for a
-- transaction, its token; the items.
-- ARGV: the id of the write, or empty in a transaction; of a repeated write the number of writes that was known
-- before it was first sent, else empty; 1 to return items that were written; how many expired items to remove at
-- most; 1 if there is a token; for each item an action, packed: kind, PK, SK, conditions, `then`, changes. Each
-- condition or change is a name, a path and a value; the value of a map is a number of fields, which follow.
-- Returns 1 if applied or 0 if a condition failed, the server's time in milliseconds; the number of writes if one
-- was applied, else 0; how many expired items were removed; and items. Of an item that was written, the fields
-- before and those that changed, empty ones removed; if conditions failed, of each item the fields if one was its
-- own, else nil. Fields and values are one text, joined by \255, which is in no UTF-8: clients read many slowly.
--
-- No item expires by itself: the images of a shard are the last that is known of its usage, and entries of
-- indexes go with their items. So each write removes some that have expired.
--
-- An error says that no item was written. So what may fail comes before the first item: types of keys and
-- permissions of the user are checked, and all that is left after it are commands that then cannot fail.
--
-- Each call makes all functions of this level, so what is needed rarely is within what needs it.

local find, sub, match, rep, format, byte = string.find, string.sub, string.match, string.rep, string.format, string.byte
local concat = table.concat
-- Ids that an item keeps, and the bytes of each: the id, and the number of its write in hexadecimal digits.
local KEPT, ID, SIZE = 16, 8, 20
local NUMBER = '%012x'
-- Is added to the number of a write that was refused when it was repeated: its first sending may still come.
local REFUSED = 2 ^ 47
-- Ends fields and values of an answer.
local END = '\255'
-- Begins the ids of a new item. Those of an earlier item under its key are not known.
local NEW = '\0\0\0\0\0\0\0\0'
-- Seconds for which the token of a transaction is known.
local TOKEN_TTL = 600
-- Records that the stream keeps for its reader.
local MOST_RECORDS = 1000000

local id, since, returns, most_expired = ARGV[1], tonumber(ARGV[2]), ARGV[3] == '1', tonumber(ARGV[4])
local is_transaction = id == ''
local EXPIRIES, RECORDS, WRITES = KEYS[INDEX_COUNT + 1], KEYS[INDEX_COUNT + 2], KEYS[INDEX_COUNT + 3]
local token = ARGV[5] == '1' and KEYS[INDEX_COUNT + 4]
local first_item = INDEX_COUNT + (token and 5 or 4)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

local function refuse(code, text)
  error({ err = code .. ' ' .. text })
end

-- Runs a command on a key that all writes share. An error would else be taken for one of the items' keys.
local function shared_call(command, key, ...)
  local answer = redis.pcall(command, key, ...)
  local error_text = type(answer) == 'table' and answer.err
  if error_text and sub(error_text, 1, 9) == 'WRONGTYPE' then
    refuse('WRONGTYPE', key .. ' holds a value of another type')
  elseif error_text then
    error(answer)
  end
  return answer
end

local function invalid(text, path)
  refuse('INVALID', text .. ' at ' .. string.gsub(path, '\31', '.'))
end

-- Numbers are text, because Lua's are exact only up to 2^53.

-- Returns the sign, the whole part and the fraction.
local function parts(number)
  return match(number, '^(%-?)(%d+)%.?(%d*)$')
end

-- Returns whether a value is a number. `tonumber` reads its text twice.
local function is_number(value)
  local first = byte(value or '')
  return first and first >= 45 and first <= 57
end

-- Compares numbers. Returns a number below, equal to or above 0; nothing if one is no number. Rounding keeps the
-- order, so only those that Lua takes for equal are compared by sign, length and text.
local function compare(a, b)
  if not (is_number(a) and is_number(b)) then
    return nil
  elseif a == b then
    return 0
  end
  local x, y = a + 0, b + 0
  if x ~= y then
    return x < y and -1 or 1
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

local EXACT = 2 ^ 52

local function add(a, b)
  local x, y = a + 0, b + 0
  local is_exact = x < EXACT and x > -EXACT and y < EXACT and y > -EXACT
  if is_exact and not find(a, '.', 1, true) and not find(b, '.', 1, true) then
    -- In 64 bits; `%.0f` takes three times as long.
    return format('%d', x + y)
  end
  -- Digit by digit, of numbers of any length.
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
  local text = concat(sum)
  local whole, fraction = match(sub(text, 1, length), '^0*(%d+)$'), match(sub(text, length + 1), '^(.-)0*$')
  if fraction ~= '' then
    whole = whole .. '.' .. fraction
  end
  return whole == '0' and whole or sign .. whole
end

-- Returns the numbers of a set, each with whether it is in it.
local function members(set)
  local all = {}
  for number in string.gmatch(set or '', '[^#,]+') do
    all[number] = true
  end
  return all
end

-- Returns a set with numbers that are added (true) or removed (nil); nothing if it has none: a set is never empty.
local function changed_set(path, before, numbers, is_member)
  if before and sub(before, 1, 1) ~= '#' then
    invalid('no set of numbers', path)
  end
  local all, sorted = members(before), {}
  for number in pairs(members(numbers)) do
    all[number] = is_member
  end
  for number in pairs(all) do
    table.insert(sorted, number)
  end
  table.sort(sorted, function(a, b)
    return compare(a, b) < 0
  end)
  return #sorted > 0 and '#' .. concat(sorted, ',')
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

-- A change adds what it writes to `changed`: text, or false for a field that goes. All read the item as it was.
local function remove(item, changed, path)
  changed[path] = item[path] and false
  if item[path] == '{' then
    for _, field in ipairs(below(item, path)) do
      changed[field] = false
    end
  end
end

-- Returns the member of an index for an item with these keys of the index; nothing if it lacks one.
local function entry(index, hash, range, pk, sk)
  local key = pk .. '\0' .. sk
  if not (hash and range) then
    return nil
  elseif index[1] == 'PK' then
    return key
  elseif tonumber(range) then
    -- Ordered as text: of one length.
    local whole = sub(range, 1, 1) == '-' and '0' or match(range, '^%d+')
    range = rep('0', 20 - #whole) .. whole
  else
    range = sub(range, 2)
  end
  return sub(hash, 2) .. '\0' .. range .. '\0' .. key
end

-- Returns the item at a key: its fields with their values, and the answer itself.
local function read(key, call)
  local item, flat = {}, call('HGETALL', key)
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

-- Refuses a command that the user may not run.
local function check_may(...)
  if not redis.acl_check_cmd(...) then
    refuse('NOPERM', 'the user has no permissions to run ' .. (...))
  end
end

-- Returns the record of a write with the images of a shard before and after it, if usage is copied from one of them:
-- it begins, ends or is another life, begins an hour, or has had enough writes since the last copy.
local function record(item, changed, pk, sk, is_new, is_gone)
  if sk ~= BUCKET_SK then
    return nil
  end
  local hour, birth, live = changed[HOUR], changed[BIRTH], changed[LIVE]
  local is_copied = is_new or is_gone
  is_copied = is_copied or hour ~= nil and item[HOUR] ~= (hour or nil)
  is_copied = is_copied or birth ~= nil and item[BIRTH] ~= (birth or nil)
  is_copied = is_copied or live ~= nil and (item[LIVE] == nil) ~= not live
  if not is_copied then
    -- Below 2^53.
    local before, after = tonumber(item[SEQUENCE]) or 0, tonumber(written(item, changed, SEQUENCE)) or 0
    is_copied = math.floor(before / INTERIM) ~= math.floor(after / INTERIM)
  end
  if not is_copied then
    return nil
  end
  -- The image has the attributes that are no maps.
  local function image(with)
    local shown = {}
    for field, value in pairs(item) do
      shown[field] = value
    end
    for field, value in pairs(with) do
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
  local fields = { 'PK', pk, 'SK', sk }
  if not is_new then
    table.insert(fields, 'old')
    table.insert(fields, image({}))
  end
  if not is_gone then
    table.insert(fields, 'new')
    table.insert(fields, image(changed))
  end
  return fields
end

-- Adds records to the stream. There is none until its reader makes it.
local function add_records(records)
  for _, fields in ipairs(records) do
    -- Not of a write that is then refused.
    check_may('HSET', WRITES, '', '')
    shared_call('XADD', RECORDS, 'NOMKSTREAM', 'MAXLEN', '~', MOST_RECORDS, '*', unpack(fields))
  end
end

-- Removes items that have expired, up to the first that cannot be removed, and returns their number. `number` is
-- that of this write.
local function remove_all_expired(number)
  local removed = 0
  if most_expired == 0 then
    return removed
  end
  local due = shared_call('ZRANGE', EXPIRIES, '-inf', time[1], 'BYSCORE', 'LIMIT', 0, most_expired)
  for _, key in ipairs(due) do
    local item, answer = read(key, redis.pcall)
    if answer.err and sub(answer.err, 1, 9) ~= 'WRONGTYPE' then
      -- It is there, but elsewhere while a slot moves, so its entry stays.
      break
    end
    -- Removes nothing. A full server lets a script that has written go on, and would refuse the record.
    redis.call('ZREM', EXPIRIES, '')
    local ttl = item['PK'] and item['SK'] and expiry(item[TTL])
    if ttl and tonumber(ttl) * 1000 <= now then
      check_may('DEL', key)
      local pk, sk = sub(item['PK'], 2), sub(item['SK'], 2)
      add_records({ record(item, {}, pk, sk, false, true) })
      redis.call('HSET', WRITES, 'deletion', number)
      redis.call('DEL', key)
      for at, index in ipairs(indexes()) do
        local member = entry(index, item[index[1]], item[index[2]], pk, sk)
        if member then
          redis.call('ZREM', KEYS[at], member)
        end
      end
      removed = removed + 1
      ttl = nil
    end
    if ttl then
      -- A write that was refused had given it another one.
      shared_call('ZADD', EXPIRIES, ttl, key)
    else
      redis.call('ZREM', EXPIRIES, key)
    end
  end
  return removed
end

if first_item > #KEYS then
  return { 1, now, 0, remove_all_expired(shared_call('HGET', WRITES, 'all') or 0) }
end
local fingerprint
if token then
  fingerprint = redis.sha1hex(concat(ARGV, '', 6))
  local known = shared_call('GET', token)
  if known == fingerprint then
    return { 1, now, 0, 0 }
  elseif known == '' then
    refuse('UNDECIDED', 'its repetition was refused')
  elseif known then
    refuse('INVALID', 'the token is of a transaction with other actions; take another one')
  end
end

local writes, failed, has_failed = {}, { 0, now, 0, 0 }, false
for number = first_item, #KEYS do
  local key = KEYS[number]
  local action = cmsgpack.unpack(ARGV[number - first_item + 6])
  local kind, pk, sk, at = action[1], action[2], action[3], 4
  local item, flat = read(key, redis.call)
  local is_new = #flat == 0
  if not is_new and (item['PK'] ~= '"' .. pk or item['SK'] ~= '"' .. sk) then
    refuse('FOREIGN', 'the key holds a hash that is not of this table')
  end
  local ids = item['\30'] or ''
  if not is_transaction then
    local known = find(ids, id, 1, true)
    while known and (known - 1) % SIZE ~= 0 do
      known = find(ids, id, known + 1, true)
    end
    if known then
      if tonumber(sub(ids, known + ID, known + SIZE - 1), 16) >= REFUSED then
        refuse('UNDECIDED', 'its repetition was refused')
      end
      return { 1, now, 0, 0, concat(flat, END), '' }
    end
    if since then
      -- It may have been among those that are not kept, if the oldest that is kept came after it; or among those of
      -- an item that was deleted after it.
      local counts = shared_call('HMGET', WRITES, 'all', 'deletion')
      local after
      if is_new then
        after = tonumber(counts[2] or 0)
      elseif #ids >= KEPT * SIZE or sub(ids, 1, ID) == NEW then
        -- A number that was not given yet is of another history, which a failover ended.
        local is_of_another = since > tonumber(counts[1] or 0)
        after = is_of_another and since + 1 or tonumber(sub(ids, ID + 1, SIZE), 16) % REFUSED
      end
      if after and after > since then
        refuse('UNDECIDED', 'more writes came after it than the item keeps ids of, or one that deleted it')
      end
    end
  end
  local is_failed, is_exempt = false, false
  while action[at] ~= 'then' do
    local condition, path, value = action[at], action[at + 1], action[at + 2]
    local current, holds = item[path], true
    at = at + 3
    if condition == 'equals' then
      holds = current == value
    elseif condition == 'at_least' then
      local order = compare(current, value)
      holds = order and order >= 0
    elseif condition == 'at_most' then
      local order = compare(current, value)
      holds = order and order <= 0
    elseif condition == 'differs' then
      holds = current ~= value
    elseif condition == 'present' then
      holds = current
    elseif condition == 'absent' then
      holds = not current
    elseif condition == 'lacks' then
      holds = not members(current)[value]
    elseif condition ~= 'absent_or' then
      -- Of a map.
      value = tonumber(value)
      local is_equal = #below(item, path) == value - 1
      for field = at, at + 2 * value - 1, 2 do
        is_equal = is_equal and item[path .. action[field]] == action[field + 1]
      end
      holds = is_equal == (condition == 'equals_map')
      at = at + 2 * value
    end
    if not (holds or is_exempt) then
      is_failed = true
      break
    end
    is_exempt = condition == 'absent_or' and not current
  end
  failed[#failed + 1] = is_failed and concat(flat, END)
  has_failed = has_failed or is_failed
  local changed = {}
  if kind == 'update' and not has_failed then
    at = at + 1
    while action[at] do
      local change, path, value = action[at], action[at + 1], action[at + 2]
      local current = item[path]
      at = at + 3
      if change == 'add' then
        if current and not is_number(current) then
          invalid('no number', path)
        end
        changed[path] = add(current or '0', value)
      elseif change == 'set' then
        remove(item, changed, path)
        changed[path] = value
      elseif change == 'set_if_absent' then
        if not current then
          changed[path] = value
        end
      elseif change == 'remove' then
        remove(item, changed, path)
      elseif change == 'within' then
        if current ~= '{' then
          invalid('no map holds what is changed', path)
        end
      elseif change == 'copy' then
        -- Of the attribute that is the value.
        if not item[value] then
          invalid('nothing to copy', value)
        end
        remove(item, changed, path)
        changed[path] = item[value]
        for _, field in ipairs(item[value] == '{' and below(item, value) or {}) do
          changed[path .. sub(field, #value + 1)] = item[field]
        end
      elseif change == 'next' then
        -- Of the attribute that is the value, or else the first one, which follows.
        local from = item[value]
        if from and not is_number(from) then
          invalid('no number', value)
        end
        remove(item, changed, path)
        changed[path] = from and add(from, '1') or action[at]
        at = at + 1
      elseif change == 'add_to' then
        changed[path] = changed_set(path, current, value, true)
      elseif change == 'delete_from' then
        changed[path] = current and changed_set(path, current, value, nil)
      else
        -- Of a map.
        value = tonumber(value)
        local is_set = change == 'set_map' or not current
        if is_set then
          remove(item, changed, path)
        end
        for field = at, at + 2 * value - 1, 2 do
          if is_set then
            changed[path .. action[field]] = action[field + 1]
          end
        end
        at = at + 2 * value
      end
    end
    if is_new then
      changed['PK'], changed['SK'] = '"' .. pk, '"' .. sk
    end
  elseif kind == 'delete' then
    for field in pairs(item) do
      changed[field] = false
    end
  end
  writes[#writes + 1] = { key, item, changed, pk, sk, kind, ids, is_new, flat }
end
if has_failed then
  -- What is refused when it is repeated is not applied later.
  if since and token then
    redis.call('SET', token, '', 'EX', TOKEN_TTL)
  elseif since and not writes[1][8] then
    local refused = id .. format(NUMBER, (shared_call('HGET', WRITES, 'all') or 0) + REFUSED)
    redis.call('HSET', writes[1][1], '\30', sub(writes[1][7] .. refused, -SIZE * KEPT))
  end
  return failed
end

-- A full server refuses the first command that may need memory, and lets a script go on that has written. So a call
-- that frees some begins with a command that removes nothing: items get shorter, or expired ones go at its end, or its
-- copies of usage free the longer records that they are from.
local grows, is_copy = 0, false
for _, write in ipairs(writes) do
  is_copy = is_copy or find(write[5], SNAPSHOT_SK, 1, true) == 1
  local item, new, old = write[2], {}, {}
  for field, value in pairs(write[3]) do
    local before = item[field]
    if value then
      new[#new + 1] = field
      new[#new + 1] = value
      grows = grows + #value - (before and #before or -#field)
    else
      old[#old + 1] = field
      grows = grows - (before and #field + #before or 0)
    end
  end
  write[10], write[11] = new, old
end
-- Nothing is due if the key is of another type. What this write lets expire is looked for again at the end.
local due = most_expired > 0 and redis.pcall('ZRANGE', EXPIRIES, '-inf', time[1], 'BYSCORE', 'LIMIT', 0, 1) or {}
if grows < 0 or #due > 0 or is_copy then
  redis.pcall('ZREM', EXPIRIES, '')
end
local number = shared_call('HINCRBY', WRITES, 'all', 1)
-- Entries come before their items and go after them, so that an item without one cannot be.
local gone, records, is_due = {}, {}, #due > 0
for _, write in ipairs(writes) do
  local key, item, changed, pk, sk, kind, ids, is_new = unpack(write)
  if is_listed(changed) then
    for at, index in ipairs(indexes()) do
      local before = entry(index, item[index[1]], item[index[2]], pk, sk)
      local after = entry(index, written(item, changed, index[1]), written(item, changed, index[2]), pk, sk)
      if after and after ~= before then
        shared_call('ZADD', KEYS[at], 0, after)
      end
      if before and after ~= before then
        gone[#gone + 1] = { KEYS[at], before }
      end
    end
    local ttl = expiry(changed[TTL])
    if ttl then
      shared_call('ZADD', EXPIRIES, ttl, key)
      is_due = is_due or tonumber(ttl) * 1000 <= now
    elseif expiry(item[TTL]) and changed[TTL] ~= nil then
      gone[#gone + 1] = { EXPIRIES, key }
    end
  end
  if kind == 'update' then
    if #write[11] > 0 then
      check_may('HDEL', key, '')
    end
    if is_new then
      ids = ids .. NEW .. format(NUMBER, number)
    end
    if not is_transaction then
      ids = ids .. id .. format(NUMBER, number)
    end
    write[7] = sub(ids, -SIZE * KEPT)
    records[#records + 1] = record(item, changed, pk, sk, is_new, false)
  elseif kind == 'delete' and not is_new then
    check_may('DEL', key)
    records[#records + 1] = record(item, changed, pk, sk, false, true)
  end
end
for _, member in ipairs(gone) do
  -- Fails if the key is of another type.
  shared_call('ZSCORE', member[1], member[2])
  check_may('ZREM', member[1], member[2])
end
if token then
  check_may('SET', token, fingerprint)
end
add_records(records)
local answer = { 1, now, number, 0 }
for _, write in ipairs(writes) do
  local key, _, _, _, _, kind, ids, is_new, flat, new, old = unpack(write)
  if kind == 'delete' and not is_new then
    redis.call('HSET', WRITES, 'deletion', number)
    redis.call('DEL', key)
  elseif kind == 'update' then
    -- In pieces that fit Lua's stack.
    for at = 1, math.max(#new, 1), 1000 do
      redis.call('HSET', key, '\30', ids, unpack(new, at, math.min(at + 999, #new)))
    end
    for at = 1, #old, 1000 do
      redis.call('HDEL', key, unpack(old, at, math.min(at + 999, #old)))
    end
    if returns then
      for _, field in ipairs(old) do
        new[#new + 1] = field
        new[#new + 1] = ''
      end
      answer[5], answer[6] = concat(flat, END), concat(new, END)
    end
  end
end
for _, member in ipairs(gone) do
  redis.call('ZREM', member[1], member[2])
end
if token then
  redis.call('SET', token, fingerprint, 'EX', TOKEN_TTL)
end
if is_due then
  -- Whatever is wrong with others, this write was applied.
  local is_removed, removed = pcall(remove_all_expired, number)
  answer[4] = is_removed and removed or 0
end
return answer
